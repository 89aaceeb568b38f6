/* support.h: runs build/duckd as a user would, through the shell, and keeps what it said. */
#ifndef DUCKD_TESTS_CLI_SUPPORT_H
#define DUCKD_TESTS_CLI_SUPPORT_H

#include <cjson/cJSON.h>
#include <stddef.h>

/* setjmp, stdarg and stdint are what cmocka.h wants to see first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

struct outcome {
    int status; // of the shell: 0 .. 255
    char *out, *err;
    size_t out_length;
};

/* Runs a shell command in a fresh scratch directory of this process, with $D = duckd and $S = the source
 * tree; at most two minutes. Earlier outcomes stay valid until outcome_free(). */
struct outcome run(const char *format, ...) __attribute__((format(printf, 1, 2)));
void outcome_free(struct outcome *o);

const char *scratch(void);                              // the directory
void write_scratch(const char *name, const char *text); // a file in it
char *read_scratch(const char *name, size_t *length);   // free it

/* A duckd that is talked to while it runs. */
struct child {
    int pid, fd; // fd: its stdout, or its terminal
    char *said;  // so far
    size_t length;
};
/* `terminal`: stdin, stdout and stderr are a pseudo terminal; otherwise stdout is a pipe. argv[0] is added.
 */
struct child child_start(int terminal, const char *const *arguments);
/* Reads until `text` was said after position `from`; 60 seconds at most, then the test fails. Returns where
 * it ended. */
size_t child_expect(struct child *c, size_t from, const char *text);
void child_type(struct child *c, const char *text);
/* Reads to the end; the exit status, or 256 + signal. Frees. */
int child_end(struct child *c);

/* stdout is one JSON value; NULL fails the test. */
cJSON *json_of(const struct outcome *o);
int lines_in(const char *text);
/* Removes the scratch directory; a group teardown. */
int remove_scratch(void **state);

#endif
