/* log.c: one mutex around stderr, one progress line at most. */
#include "host/util/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "host/util/clock.h"

#define SECOND_NS 1000000000u
#define QUIET_NS (1 * (uint64_t)SECOND_NS)     // an operation shorter than this shows no progress
#define TERMINAL_NS ((uint64_t)SECOND_NS / 10) // between rewrites of the line on a terminal
#define FILE_NS (10 * (uint64_t)SECOND_NS)     // between lines anywhere else

static _Atomic int level = LOG_NOTICE;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static FILE *copy;      // under the mutex
static bool line_shown; // a progress line stands on the terminal, cursor at its end

void log_copy(FILE *to)
{
    pthread_mutex_lock(&mutex);
    copy = to;
    pthread_mutex_unlock(&mutex);
}

void log_set_level(enum log_level highest_shown)
{
    atomic_store(&level, (int)highest_shown);
}

static bool shown(enum log_level l)
{
    return (int)l <= atomic_load(&level);
}

static void clear_line(void)
{
    if (line_shown) fputs("\r\033[K", stderr);
    line_shown = false;
}

static void log_line(enum log_level l, const char *prefix, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

static void log_line(enum log_level l, const char *prefix, const char *format, va_list args)
{
    if (!shown(l)) return;
    char text[1024]; // one write per line: other processes share stderr
    vsnprintf(text, sizeof text, format, args);
    pthread_mutex_lock(&mutex);
    clear_line();
    fprintf(stderr, "%s%s\n", prefix, text);
    fflush(stderr);
    if (copy) fprintf(copy, "%s%s\n", prefix, text);
    pthread_mutex_unlock(&mutex);
}

void log_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_line(LOG_ERROR, "duckd: ", format, args);
    va_end(args);
}

void log_notice(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_line(LOG_NOTICE, "", format, args);
    va_end(args);
}

void log_detail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_line(LOG_DETAIL, "", format, args);
    va_end(args);
}

void progress_begin(struct progress *p, const char *what, const char *unit, double total, double scale)
{
    *p = (struct progress){
        .what = what, .unit = unit, .total = total, .scale = scale, .started_ns = clock_ns()};
}

static void format_progress(const struct progress *p, double done, uint64_t now, char *text, size_t size)
{
    double seconds = (double)(now - p->started_ns) / SECOND_NS;
    double rate = done / seconds;
    int decimals = p->scale == 1 ? 0 : 1;
    if (p->total <= 0) { // nobody knows how much it will be
        snprintf(text, size, "%s  %.*f %s  %.3g %s/s", p->what, decimals, done / p->scale, p->unit,
                 rate / p->scale, p->unit);
        return;
    }
    char eta[32] = "?";
    if (rate > 0) {
        double left = done < p->total ? (p->total - done) / rate : 0;
        unsigned long s = left < 1e6 ? (unsigned long)(left + 0.5) : 1000000;
        if (s >= 3600) {
            snprintf(eta, sizeof eta, "%lu:%02lu:%02lu", s / 3600, s / 60 % 60, s % 60);
        } else {
            snprintf(eta, sizeof eta, "%lu:%02lu", s / 60, s % 60);
        }
    }
    snprintf(text, size, "%s  %.*f / %.*f %s  %.3g %s/s  ETA %s", p->what, decimals, done / p->scale,
             decimals, p->total / p->scale, p->unit, rate / p->scale, p->unit, eta);
}

static struct {
    pthread_mutex_t mutex;
    double done, total, eta_s;
} latest = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void remember(const struct progress *p, double done, uint64_t now)
{
    double seconds = (double)(now - p->started_ns) / SECOND_NS;
    pthread_mutex_lock(&latest.mutex);
    latest.done = done;
    latest.total = p->total;
    latest.eta_s = done > 0 && done < p->total ? seconds * (p->total - done) / done : 0;
    pthread_mutex_unlock(&latest.mutex);
}

void progress_look(double *done, double *total, double *eta_s)
{
    pthread_mutex_lock(&latest.mutex);
    *done = latest.done;
    *total = latest.total;
    *eta_s = latest.eta_s;
    pthread_mutex_unlock(&latest.mutex);
}

void progress_update(struct progress *p, double done)
{
    progress__update_at(p, done, clock_ns());
}

void progress__update_at(struct progress *p, double done, uint64_t now)
{
    remember(p, done, now);
    if (!shown(LOG_NOTICE)) return;
    if (now - p->started_ns < QUIET_NS) return;
    if (pthread_mutex_trylock(&mutex) != 0) return; // somebody is writing: the next update will do
    bool terminal = isatty(STDERR_FILENO) == 1;
    if (p->shown_ns == 0 || now - p->shown_ns >= (terminal ? TERMINAL_NS : FILE_NS)) {
        char text[256];
        format_progress(p, done, now, text, sizeof text);
        p->shown_ns = now;
        if (terminal) {
            fprintf(stderr, "\r%s\033[K", text);
            line_shown = true;
        } else {
            fprintf(stderr, "%s\n", text);
        }
        fflush(stderr);
    }
    pthread_mutex_unlock(&mutex);
}

void progress_end(struct progress *p)
{
    pthread_mutex_lock(&mutex);
    clear_line();
    fflush(stderr);
    p->shown_ns = 0;
    pthread_mutex_unlock(&mutex);
}
