/* error.h: how a call that failed says what, where and with which numbers.
 *
 * Functions that can fail return 0 or a negative errno code and fill a caller-owned `struct error`
 * with one line a person can act on. The message is written where the failure is known, once;
 * callers pass it up unchanged or put "where" in front with error_prefix(). Nothing here allocates. */
#ifndef DUCKD_HOST_UTIL_ERROR_H
#define DUCKD_HOST_UTIL_ERROR_H

struct error {
    char text[512]; // one line, no newline at the end; empty when nothing failed
};

/* Writes the message and returns `code` (negative errno), so that failing reads
 * `return error_set(err, -EINVAL, "...", ...);`. `err` may be NULL. */
int error_set(struct error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
#ifdef __clang_analyzer__ // which does not look into other files: what is returned is what was given
#define error_set(err, code, ...) (error_set((err), (code), __VA_ARGS__), (code))
#endif

/* Puts "prefix: " in front of the message already there. */
void error_prefix(struct error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
