/* log.h: what goes to stderr. stdout carries results only and is never written here.
 *
 * Levels: -q shows errors only, default also notices and progress, -v details.
 * Progress lines rewrite themselves on a terminal and print at most every 10 s elsewhere;
 * they appear only once an operation has taken longer than a second. Thread safe. */
#ifndef DUCKD_HOST_UTIL_LOG_H
#define DUCKD_HOST_UTIL_LOG_H

#include <stdint.h>
#include <stdio.h>

enum log_level { LOG_ERROR, LOG_NOTICE, LOG_DETAIL };

void log_set_level(enum log_level highest_shown);
/* Lines (not progress) go to this stream too, until NULL; the caller's. */
void log_copy(FILE *to);
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_notice(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_detail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* One operation's progress: "loading  12.3 / 29.7 MB  410 MB/s  ETA 0:02". `unit` is "MB" or "tokens"...;
 * amounts are divided by `scale` for
 * display; total 0: unknown. progress_end() clears the line. */
struct progress {
    const char *what, *unit;
    double total, scale;
    uint64_t started_ns, shown_ns;
};
void progress_begin(struct progress *p, const char *what, const char *unit, double total, double scale);
void progress_update(struct progress *p, double done);
void progress_end(struct progress *p);

/* How far the operation reported last is, shown or not: amounts as given, seconds left. Zeros before the
 * first one. */
void progress_look(double *done, double *total, double *eta_s);

/* progress_update() with the clock as an argument, for tests. */
void progress__update_at(struct progress *p, double done, uint64_t now_ns);

#endif
