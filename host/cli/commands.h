/* commands.h: one function per command of duckd.
 *
 * Each returns 0, or a negative errno code with one line in *err: -EINTR after Ctrl-C (what was there has
 * been written), -EPIPE with an empty line when stdout was closed by its reader. */
#ifndef DUCKD_HOST_CLI_COMMANDS_H
#define DUCKD_HOST_CLI_COMMANDS_H

#include "host/cli/options.h"

int command_doctor(const struct options *o, struct error *err);
int command_flock(const struct options *o, struct error *err);
int command_generate(const struct options *o, struct error *err);
int command_chat(const struct options *o, struct error *err);
int command_bench(const struct options *o, int argc, char **argv, struct error *err);
int command_logits(const struct options *o, struct error *err);
int command_eval(const struct options *o, struct error *err);
int command_serve(const struct options *o, struct error *err);
int command_plan(const struct options *o, struct error *err);
int command_tokenize(const struct options *o, struct error *err);

#endif
