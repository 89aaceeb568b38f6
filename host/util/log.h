/* log.h: what goes to stderr. stdout carries results only and is never written here.
 *
 * Levels: -q shows errors only, default also notices and progress, -v details.
 * Progress rewrites itself on a terminal, cut to its width, and prints a line at most every 10 s elsewhere;
 * it appears only once an operation has taken longer than a second. Thread safe. */
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
struct progress_amount {
    double done, total, rate; // rate: a second
};
/* The part of an operation that will take longest, on a line of its own below the operation's on a terminal,
 * behind it elsewhere: "slowest dpdk-3  0.4 / 7.4 MB  11 MB/s  ETA 0:01". */
struct progress_part {
    char name[64]; // "": there is none
    struct progress_amount amount;
};
void progress_begin(struct progress *p, const char *what, const char *unit, double total, double scale);
void progress_update(struct progress *p, double done);
void progress_update_slowest(struct progress *p, double done, const struct progress_part *slowest);
void progress_end(struct progress *p);

/* How far the operation reported last is, shown or not: amounts as given. Zeros before the first one. */
struct progress_state {
    struct progress_amount all;
    struct progress_part slowest;
    double left_s; // of all, the slowest part included; -1: nobody knows
};
void progress_look(struct progress_state *out);
double progress_left_s(const struct progress_amount *a); // -1: nobody knows

/* progress_update_slowest() with the clock as an argument, for tests; no part: NULL. */
void progress__update_at(struct progress *p, double done, const struct progress_part *slowest,
                         uint64_t now_ns);

#endif
