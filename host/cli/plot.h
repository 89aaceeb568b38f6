/* plot.h: the latency plot of one answer: every token's time, slow and fast path apart.
 *
 * Writes DIR/NAME.gp, a script that carries its data (tools/plot/latency.gp behind a head), and has gnuplot
 * draw NAME.svg and NAME.png beside it. */
#ifndef DUCKD_HOST_CLI_PLOT_H
#define DUCKD_HOST_CLI_PLOT_H

#include <stdbool.h>

#include "host/cli/answer.h"

/* *drawn is false when there is no gnuplot; a gnuplot that fails, or leaves a drawing without its
 * end (a full disk), is an error. */
int plot_latency(const char *dir, const char *name, const struct answer *a, bool *drawn, struct error *err);

#endif
