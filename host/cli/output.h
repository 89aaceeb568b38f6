/* output.h: what a command writes: stdout, whole files, CSV and JSON.
 *
 * A stdout that is closed early (`duckd ... | head -1`) ends a command quietly: those calls return -EPIPE
 * with an empty message. Every other failure to write is reported. */
#ifndef DUCKD_HOST_CLI_OUTPUT_H
#define DUCKD_HOST_CLI_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "host/util/error.h"

/* Writes to stdout at once. */
int output_text(const char *text, size_t length, struct error *err);
/* Flushes stdout and says whether everything arrived. */
int output_finish(struct error *err);

/* A file that appears complete or not at all: written without a name beside `path`, so that nothing is left
 * when the process is killed (under a temporary name where the file system cannot do that). Where `path` is
 * there and not a plain file (a device, a pipe), it is written directly; "-" is stdout, behind what it holds.
 */
struct output_file {
    FILE *stream;
    char path[4096], temporary[4128]; // temporary: its name until commit; empty when written directly
    bool nameless;                    // it has that name only for a moment
};
int output_open(struct output_file *f, const char *path, struct error *err);
int output_commit(struct output_file *f, struct error *err); // closes *f in any case
void output_abandon(struct output_file *f);                  // harmless after commit

/* mkdir -p */
int output_directory(const char *path, struct error *err);

/* A field of RFC 4180, quoted where it must be. */
void output_csv_field(FILE *to, const char *text, size_t length);
/* A JSON string with its quotes; the text may hold any byte but should be UTF-8. */
void output_json_string(FILE *to, const char *text, size_t length);
/* A number, or null where it is not finite (nothing was measured). */
void output_json_number(FILE *to, double x, int decimals);

#endif
