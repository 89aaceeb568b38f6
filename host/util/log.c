/* log.c: one mutex around stderr, one operation's progress at most. */
#include "host/util/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "host/util/clock.h"

#define SECOND_NS 1000000000u
#define QUIET_NS (1 * (uint64_t)SECOND_NS)     // an operation shorter than this shows no progress
#define TERMINAL_NS ((uint64_t)SECOND_NS / 10) // between rewrites of the line on a terminal
#define FILE_NS (10 * (uint64_t)SECOND_NS)     // between lines anywhere else

static _Atomic int level = LOG_NOTICE;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static FILE *copy;      // under the mutex
static int lines_shown; // of progress on the terminal, cursor at the end of the last

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

static void clear_lines(void)
{
    for (; lines_shown > 1; lines_shown--) fputs("\r\033[K\033[A", stderr);
    if (lines_shown) fputs("\r\033[K", stderr);
    lines_shown = 0;
}

static void log_line(enum log_level l, const char *prefix, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

static void log_line(enum log_level l, const char *prefix, const char *format, va_list args)
{
    if (!shown(l)) return;
    char text[1024]; // one write per line: other processes share stderr
    vsnprintf(text, sizeof text, format, args);
    pthread_mutex_lock(&mutex);
    clear_lines();
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

double progress_left_s(const struct progress_amount *a)
{
    if (a->total <= 0 || a->rate <= 0) return -1;
    return a->done < a->total ? (a->total - a->done) / a->rate : 0;
}

static struct progress_amount amount_at(const struct progress *p, double done, uint64_t now)
{
    double seconds = (double)(now - p->started_ns) / SECOND_NS;
    return (struct progress_amount){done, p->total, seconds > 0 ? done / seconds : 0};
}

static void format_amount(const struct progress *p, const char *what, const struct progress_amount *a,
                          double left, char *text, size_t size)
{
    int decimals = p->scale == 1 ? 0 : 1;
    double done = a->done / p->scale, rate = a->rate / p->scale;
    char pace[32];
    snprintf(pace, sizeof pace, rate < 999.5 ? "%.3g" : "%.0f", rate); // no 1.5e+03
    if (a->total <= 0) {                                               // nobody knows how much it will be
        snprintf(text, size, "%s  %.*f %s  %s %s/s", what, decimals, done, p->unit, pace, p->unit);
        return;
    }
    char eta[32] = "?";
    unsigned long s = left < 1e6 ? (unsigned long)(left + 0.5) : 1000000;
    if (left >= 0 && s >= 3600) {
        snprintf(eta, sizeof eta, "%lu:%02lu:%02lu", s / 3600, s / 60 % 60, s % 60);
    } else if (left >= 0) {
        snprintf(eta, sizeof eta, "%lu:%02lu", s / 60, s % 60);
    }
    snprintf(text, size, "%s  %.*f / %.*f %s  %s %s/s  ETA %s", what, decimals, done, decimals,
             a->total / p->scale, p->unit, pace, p->unit, eta);
}

static struct {
    pthread_mutex_t mutex;
    struct progress_state state;
} latest = {.mutex = PTHREAD_MUTEX_INITIALIZER, .state = {.left_s = -1}};

void progress_look(struct progress_state *out)
{
    pthread_mutex_lock(&latest.mutex);
    *out = latest.state;
    pthread_mutex_unlock(&latest.mutex);
}

void progress_update(struct progress *p, double done)
{
    progress__update_at(p, done, NULL, clock_ns());
}

void progress_update_slowest(struct progress *p, double done, const struct progress_part *slowest)
{
    progress__update_at(p, done, slowest, clock_ns());
}

/* A line that wraps cannot be rewritten. */
static int terminal_columns(void)
{
    struct winsize w = {0};
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &w) != 0 || w.ws_col < 2) return 1000; // it does not tell
    return w.ws_col - 1;
}

static void show(const struct progress *p, const struct progress_state *s, bool terminal)
{
    char all[256], part[256] = "", what[80];
    format_amount(p, p->what, &s->all, s->left_s, all, sizeof all);
    if (*s->slowest.name) {
        snprintf(what, sizeof what, "slowest %s", s->slowest.name);
        format_amount(p, what, &s->slowest.amount, progress_left_s(&s->slowest.amount), part, sizeof part);
    }
    if (terminal) {
        int columns = terminal_columns();
        if (lines_shown > 1) clear_lines();
        fprintf(stderr, "\r%.*s\033[K", columns, all);
        if (*part) fprintf(stderr, "\n%.*s\033[K", columns, part);
        lines_shown = *part ? 2 : 1;
    } else {
        fprintf(stderr, "%s%s%s\n", all, *part ? "  " : "", part);
    }
    fflush(stderr);
}

void progress__update_at(struct progress *p, double done, const struct progress_part *slowest, uint64_t now)
{
    struct progress_state s = {.all = amount_at(p, done, now)};
    if (slowest) s.slowest = *slowest;
    s.left_s = progress_left_s(&s.all);
    double longest = *s.slowest.name ? progress_left_s(&s.slowest.amount) : -1;
    if (s.left_s >= 0 && longest > s.left_s) s.left_s = longest; // all is done when that part is
    pthread_mutex_lock(&latest.mutex);
    latest.state = s;
    pthread_mutex_unlock(&latest.mutex);
    if (!shown(LOG_NOTICE)) return;
    if (now - p->started_ns < QUIET_NS) return;
    if (pthread_mutex_trylock(&mutex) != 0) return; // somebody is writing: the next update will do
    bool terminal = isatty(STDERR_FILENO) == 1;
    if (p->shown_ns == 0 || now - p->shown_ns >= (terminal ? TERMINAL_NS : FILE_NS)) {
        p->shown_ns = now;
        show(p, &s, terminal);
    }
    pthread_mutex_unlock(&mutex);
}

void progress_end(struct progress *p)
{
    pthread_mutex_lock(&mutex);
    clear_lines();
    fflush(stderr);
    p->shown_ns = 0;
    pthread_mutex_unlock(&mutex);
}
