/* support.c: see support.h. */
#include "tests/cli/support.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[64];

const char *scratch(void)
{
    if (!directory[0]) {
        strcpy(directory, "/tmp/duckd-cli-XXXXXX");
        assert_non_null(mkdtemp(directory));
        setenv("D", BINARY_DIR "/duckd", 1);
        setenv("S", SOURCE_DIR, 1);
        setenv("XDG_STATE_HOME", directory, 1);
    }
    return directory;
}

char *read_scratch(const char *name, size_t *length)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", scratch(), name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    size_t size = (size_t)ftell(f);
    rewind(f);
    char *text = calloc(1, size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, size, f), size);
    fclose(f);
    if (length) *length = size;
    return text;
}

void write_scratch(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", scratch(), name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* Takes away how far something was that took longer than a second: on a slow machine anything may. */
static void drop_progress(char *text)
{
    char *to = text, *end;
    for (char *line = text; *line; line = end) {
        char *newline = strchr(line, '\n'), *eta = strstr(line, "/s  ETA ");
        end = newline ? newline + 1 : line + strlen(line);
        if (eta && eta < end) continue;
        memmove(to, line, (size_t)(end - line));
        to += end - line;
    }
    *to = 0;
}

struct outcome run(const char *format, ...)
{
    char command[4096], shell[4400];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    write_scratch("command.sh", command);
    snprintf(shell, sizeof shell, "cd '%s' && timeout -k 5 600 sh command.sh >stdout.txt 2>stderr.txt",
             scratch());
    int status = system(shell);
    struct outcome o = {.status = WIFEXITED(status) ? WEXITSTATUS(status) : 256};
    o.out = read_scratch("stdout.txt", &o.out_length);
    o.err = read_scratch("stderr.txt", NULL);
    drop_progress(o.err);
    return o;
}

void outcome_free(struct outcome *o)
{
    free(o->out);
    free(o->err);
}

cJSON *json_of(const struct outcome *o)
{
    cJSON *json = cJSON_ParseWithOpts(o->out, NULL, 1);
    if (!json) print_error("not JSON: %s\nstderr: %s\n", o->out, o->err);
    assert_non_null(json);
    return json;
}

int lines_in(const char *text)
{
    int lines = 0;
    for (; *text; text++) lines += *text == '\n';
    return lines;
}

int remove_scratch(void **state)
{
    char shell[128];
    (void)state;
    snprintf(shell, sizeof shell, "rm -rf '%s'", scratch());
    return system(shell);
}

/* ---- children ---- */

struct child child_start(int terminal, const char *const *arguments)
{
    const char *argv[24] = {"duckd"};
    struct child c = {.said = calloc(1, 1)};
    int ends[2];
    scratch();
    for (size_t i = 0; arguments[i]; i++) argv[i + 1] = arguments[i];
    if (!terminal) assert_int_equal(pipe(ends), 0);
    struct winsize size = {.ws_row = 40, .ws_col = 200};
    c.pid = terminal ? forkpty(&c.fd, NULL, NULL, &size) : fork();
    assert_true(c.pid >= 0);
    if (c.pid == 0) {
        signal(SIGINT, SIG_DFL); // a shell's background, in which tests may run, ignores it
        if (!terminal) dup2(ends[1], STDOUT_FILENO);
        if (chdir(directory) == 0) execv(BINARY_DIR "/duckd", (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    if (!terminal) {
        close(ends[1]);
        c.fd = ends[0];
    }
    return c;
}

/* false: the end, or nothing came for `ms`. */
static int child_read(struct child *c, int ms)
{
    char piece[4096];
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    if (poll(&p, 1, ms) <= 0) return 0;
    ssize_t n = read(c->fd, piece, sizeof piece);
    if (n <= 0) return 0;
    c->said = realloc(c->said, c->length + (size_t)n + 1);
    assert_non_null(c->said);
    memcpy(c->said + c->length, piece, (size_t)n);
    c->length += (size_t)n;
    c->said[c->length] = 0;
    return 1;
}

size_t child_expect(struct child *c, size_t from, const char *text)
{
    char *found;
    while (!(found = strstr(c->said + from, text))) {
        if (child_read(c, 60000)) continue;
        kill(c->pid, SIGKILL);
        print_error("waited for '%s', but this was all:\n%s\n", text, c->said);
        fail();
    }
    return (size_t)(found - c->said) + strlen(text);
}

void child_type(struct child *c, const char *text)
{
    assert_int_equal(write(c->fd, text, strlen(text)), strlen(text));
}

int child_end(struct child *c)
{
    int status;
    while (child_read(c, 60000)) continue;
    for (int i = 0; waitpid(c->pid, &status, WNOHANG) == 0; i++) {
        if (i == 6000) kill(c->pid, SIGKILL);
        usleep(10000);
    }
    close(c->fd);
    free(c->said);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}
