/* lines.h: the lines a person types: with editing and history on a terminal, plain from anything else.
 *
 * What is pasted at a terminal goes into one line as it is, line ends included, where the terminal marks it
 * ("bracketed paste"); Enter ends the line.
 *
 * The history is $XDG_STATE_HOME/duckd/chat_history (else ~/.local/state/...), readable by its owner alone.
 */
#ifndef DUCKD_HOST_CLI_LINES_H
#define DUCKD_HOST_CLI_LINES_H

#include <stdbool.h>
#include <stddef.h>

#include "host/util/error.h"

struct lines;
int lines_open(struct lines **out, bool history, struct error *err);
void lines_close(struct lines *l); // saves the history
bool lines_terminal(const struct lines *l);

/* 1: *line is there until the next call, `length` bytes (NULs among them are text) and a NUL, without the
 * newline that ended it and surrounding blanks; 0: no more (Ctrl-D, SIGTERM). Ctrl-C at the prompt drops the
 * line that was begun.
 */
int lines_read(struct lines *l, const char **line, size_t *length, struct error *err);

#endif
