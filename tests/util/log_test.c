// log_test.c: what reaches stderr at which level, and how progress looks on a terminal and in a file.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "host/util/error.h"
#include "host/util/log.h"

static int saved = -1, read_end = -1;

static void capture(int reader, int writer)
{
    fflush(stderr);
    saved = dup(STDERR_FILENO);
    read_end = reader;
    dup2(writer, STDERR_FILENO);
    close(writer);
}

static void capture_pipe(void)
{
    int fd[2];
    assert_int_equal(pipe(fd), 0);
    capture(fd[0], fd[1]);
}

static void capture_terminal(void)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(slave >= 0);
    struct termios t;
    tcgetattr(slave, &t);
    cfmakeraw(&t);
    tcsetattr(slave, TCSANOW, &t);
    capture(master, slave);
}

// Everything written since capture(): stderr, the only writer, is closed first, so that reading ends.
static const char *captured(void)
{
    static char text[4096];
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    size_t length = 0;
    ssize_t n;
    while (length < sizeof text - 1 && (n = read(read_end, text + length, sizeof text - 1 - length)) > 0)
        length += (size_t)n;
    text[length] = 0;
    close(read_end);
    return text;
}

static const char *all_levels_at(enum log_level level)
{
    capture_pipe();
    log_set_level(level);
    log_error("no such file: %s", "x");
    log_notice("notice %d", 1);
    log_detail("detail %d", 2);
    const char *text = captured();
    log_set_level(LOG_NOTICE);
    return text;
}

static void levels(void **state)
{
    (void)state;
    assert_string_equal(all_levels_at(LOG_ERROR), "duckd: no such file: x\n");
    assert_string_equal(all_levels_at(LOG_NOTICE), "duckd: no such file: x\nnotice 1\n");
    assert_string_equal(all_levels_at(LOG_DETAIL), "duckd: no such file: x\nnotice 1\ndetail 2\n");
}

enum { SECOND = 1000000000 };

static struct progress begun(void)
{
    struct progress p;
    progress_begin(&p, "loading", "MB", 29.7e6, 1e6);
    return p;
}

static void update(struct progress *p, double done, uint64_t after_ns)
{
    progress__update_at(p, done, NULL, p->started_ns + after_ns);
}

static void short_operations_show_nothing(void **state)
{
    (void)state;
    capture_pipe();
    struct progress p = begun();
    update(&p, 1e6, SECOND / 2);
    progress_end(&p);
    assert_string_equal(captured(), "");
}

static void file_gets_a_line_now_and_then(void **state)
{
    (void)state;
    capture_pipe();
    struct progress p = begun();
    update(&p, 9.9e6, 2ull * SECOND);
    update(&p, 12e6, 11ull * SECOND); // less than 10 s later: not shown
    progress_end(&p);
    assert_string_equal(captured(), "loading  9.9 / 29.7 MB  4.95 MB/s  ETA 0:04\n");
}

static void terminal_line_rewrites_itself(void **state)
{
    (void)state;
    capture_terminal();
    struct progress p = begun();
    update(&p, 9.9e6, 2ull * SECOND);
    log_notice("a word");
    update(&p, 19.8e6, 4ull * SECOND);
    progress_end(&p);
    assert_string_equal(captured(), "\rloading  9.9 / 29.7 MB  4.95 MB/s  ETA 0:04\033[K"
                                    "\r\033[Ka word\n"
                                    "\rloading  19.8 / 29.7 MB  4.95 MB/s  ETA 0:02\033[K"
                                    "\r\033[K");
}

static void update_both(struct progress *p, double done, const char *name, double part, uint64_t after_ns)
{
    struct progress_part slowest = {.amount = {part, 7.4e6, 1.1e6}};
    snprintf(slowest.name, sizeof slowest.name, "%s", name);
    progress__update_at(p, done, &slowest, p->started_ns + after_ns);
}

static void slowest_part_stands_below(void **state)
{
    (void)state;
    capture_terminal();
    struct progress p = begun();
    update_both(&p, 9.9e6, "duck-3", 0.8e6, 2ull * SECOND);
    update_both(&p, 19.8e6, "duck-3", 5.2e6, 4ull * SECOND);
    log_notice("a word");
    update_both(&p, 19.8e6, "duck-3", 5.2e6, 5ull * SECOND);
    update(&p, 29.7e6, 6ull * SECOND);
    progress_end(&p);
    assert_string_equal(captured(), "\rloading  9.9 / 29.7 MB  4.95 MB/s  ETA 0:06\033[K"
                                    "\nslowest duck-3  0.8 / 7.4 MB  1.1 MB/s  ETA 0:06\033[K"
                                    "\r\033[K\033[A\r\033[K"
                                    "\rloading  19.8 / 29.7 MB  4.95 MB/s  ETA 0:02\033[K"
                                    "\nslowest duck-3  5.2 / 7.4 MB  1.1 MB/s  ETA 0:02\033[K"
                                    "\r\033[K\033[A\r\033[Ka word\n"
                                    "\rloading  19.8 / 29.7 MB  3.96 MB/s  ETA 0:03\033[K"
                                    "\nslowest duck-3  5.2 / 7.4 MB  1.1 MB/s  ETA 0:02\033[K"
                                    "\r\033[K\033[A\r\033[K"
                                    "\rloading  29.7 / 29.7 MB  4.95 MB/s  ETA 0:00\033[K"
                                    "\r\033[K");
}

static void slowest_part_in_a_file(void **state)
{
    (void)state;
    capture_pipe();
    struct progress p = begun();
    update_both(&p, 9.9e6, "duck-3", 0.8e6, 2ull * SECOND);
    progress_end(&p);
    assert_string_equal(captured(), "loading  9.9 / 29.7 MB  4.95 MB/s  ETA 0:06"
                                    "  slowest duck-3  0.8 / 7.4 MB  1.1 MB/s  ETA 0:06\n");
    struct progress_state seen;
    progress_look(&seen);
    assert_string_equal(seen.slowest.name, "duck-3");
    assert_int_equal(progress_left_s(&seen.slowest.amount), 6);
    assert_int_equal(progress_left_s(&seen.all), 4);
    assert_int_equal(seen.left_s, 6); // no sooner than its slowest part
    update(&p, 12e6, 3ull * SECOND);
    progress_look(&seen);
    assert_string_equal(seen.slowest.name, "");
    assert_int_equal(progress_left_s(&seen.slowest.amount), -1);
}

/* A line that is longer than the terminal would leave its first half behind when it is rewritten. */
static void narrow_terminal_cuts_lines(void **state)
{
    (void)state;
    capture_terminal();
    assert_int_equal(ioctl(STDERR_FILENO, TIOCSWINSZ, &(struct winsize){.ws_row = 24, .ws_col = 16}), 0);
    struct progress p = begun();
    update_both(&p, 9.9e6, "duck-3", 0.8e6, 2ull * SECOND);
    progress_end(&p);
    assert_string_equal(captured(), "\rloading  9.9 / \033[K\nslowest duck-3 \033[K\r\033[K\033[A\r\033[K");
}

static void quiet_shows_no_progress(void **state)
{
    (void)state;
    capture_pipe();
    log_set_level(LOG_ERROR);
    struct progress p = begun();
    update(&p, 9.9e6, 2ull * SECOND);
    progress_end(&p);
    log_set_level(LOG_NOTICE);
    assert_string_equal(captured(), "");
}

static void unknown_total_and_hours(void **state)
{
    (void)state;
    capture_pipe();
    struct progress p;
    progress_begin(&p, "prefill", "tokens", 0, 1);
    update(&p, 100, 2ull * SECOND);
    progress_end(&p);
    progress_begin(&p, "prefill", "tokens", 1000000, 1);
    update(&p, 200, 2ull * SECOND);
    progress_end(&p);
    progress_begin(&p, "prefill", "tokens", 0, 1);
    update(&p, 2469, 2ull * SECOND);
    progress_end(&p);
    assert_string_equal(captured(), "prefill  100 tokens  50 tokens/s\n"
                                    "prefill  200 / 1000000 tokens  100 tokens/s  ETA 2:46:38\n"
                                    "prefill  2469 tokens  1234 tokens/s\n");
}

static void error_text_and_prefix(void **state)
{
    (void)state;
    struct error err = {0};
    assert_int_equal(error_set(&err, -5, "got %d, want %d", 3, 4), -5);
    error_prefix(&err, "file %s", "a");
    assert_string_equal(err.text, "file a: got 3, want 4");
    assert_int_equal(error_set(NULL, -7, "nobody listens"), -7);
    error_prefix(NULL, "nobody");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels),
        cmocka_unit_test(short_operations_show_nothing),
        cmocka_unit_test(file_gets_a_line_now_and_then),
        cmocka_unit_test(terminal_line_rewrites_itself),
        cmocka_unit_test(slowest_part_stands_below),
        cmocka_unit_test(slowest_part_in_a_file),
        cmocka_unit_test(narrow_terminal_cuts_lines),
        cmocka_unit_test(quiet_shows_no_progress),
        cmocka_unit_test(unknown_total_and_hours),
        cmocka_unit_test(error_text_and_prefix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
