/* lines.c: libedit on a terminal, getline elsewhere. */
#include "host/cli/lines.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "host/cli/interrupt.h"
#include "host/util/log.h"

#define HISTORY_LINES 1000

struct lines {
    EditLine *edit; // NULL: not a terminal
    History *history;
    char path[4096]; // of the history; empty: none
    bool brackets;   // the terminal is asked to mark what is pasted
    char *line;
    size_t capacity;
};

static char *prompt(EditLine *edit)
{
    (void)edit;
    static char text[] = "\1\033[1m\1>\1\033[0m\1 "; // \1 encloses what has no width
    return text;
}

/* One character for the editor: 1, 0 at the end of input, -1 on a signal. libedit's own reading would miss a
 * signal that comes just before it blocks. */
static int read_character(EditLine *edit, wchar_t *character)
{
    (void)edit;
    mbstate_t state = {0};
    struct pollfd wait[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                            {.fd = interrupt_wake_fd(), .events = POLLIN}};
    for (;;) {
        if (poll(wait, 2, -1) < 0 && errno != EINTR) return -1;
        if (interrupt_seen()) {
            errno = EINTR;
            return -1;
        }
        if (!wait[0].revents) continue;
        char byte;
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return (int)n;
        switch (mbrtowc(character, &byte, 1, &state)) {
        case (size_t)-1: // not a character of this encoding: leave it out
            state = (mbstate_t){0};
            break;
        case (size_t)-2: // more bytes follow
            break;
        default:
            return 1;
        }
    }
}

/* Whether the text ends with what marks the end of a paste; if so it is taken off. */
static bool paste_ends(const wchar_t *text, size_t *length)
{
    static const wchar_t mark[] = L"\033[201~";
    size_t marked = sizeof mark / sizeof mark[0] - 1;
    if (*length < marked || wmemcmp(text + *length - marked, mark, marked) != 0) return false;
    *length -= marked;
    return true;
}

/* An editor's function, called at the mark of a beginning paste: all of it goes into the line at once, its
 * line ends included, so that Enter alone sends a message. */
static unsigned char paste(EditLine *edit, wint_t key)
{
    (void)key;
    wchar_t *text = NULL, c = 0;
    size_t length = 0, capacity = 0;
    unsigned char outcome = CC_REFRESH;
    do {
        if (capacity - length < 2) {
            capacity = capacity ? 2 * capacity : 4096;
            wchar_t *grown = realloc(text, capacity * sizeof *text);
            if (!grown) break;
            text = grown;
        }
        wchar_t before = c;
        if (el_wgetc(edit, &c) <= 0) { // Ctrl-C, or no terminal any more
            free(text);
            return CC_EOF;
        }
        // The editor has the terminal turn \r into \n and \n into \r: a line's end is either, or \n\r.
        if (c && !(c == L'\r' && before == L'\n')) text[length++] = c == L'\r' ? L'\n' : c;
    } while (!paste_ends(text, &length));
    if (text) text[length] = 0;
    if (!text || (length && el_winsertstr(edit, text) < 0)) outcome = CC_ERROR;
    free(text);
    return outcome;
}

/* Asks the terminal to mark what is pasted, or no longer. */
static void mark_pastes(const struct lines *l, bool on)
{
    if (!l->brackets) return;
    fputs(on ? "\033[?2004h" : "\033[?2004l", stdout);
    fflush(stdout);
}

static void make_private_directory(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700); // if it cannot be made, saving says so
        *slash = '/';
    }
}

static void find_history(struct lines *l)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (state && *state == '/') {
        snprintf(l->path, sizeof l->path, "%s/duckd/chat_history", state);
    } else if (home && *home == '/') {
        snprintf(l->path, sizeof l->path, "%s/.local/state/duckd/chat_history", home);
    }
}

static int open_terminal(struct lines *l, bool with_history, struct error *err)
{
    HistEvent event;
    // What a character is; numbers keep their dots. A bare C locale would garble everything beyond ASCII.
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    l->edit = el_init("duckd", stdin, stdout, stderr);
    l->history = history_init();
    if (!l->edit || !l->history) return error_set(err, -ENOMEM, "the terminal cannot be set up for editing");
    el_set(l->edit, EL_PROMPT_ESC, prompt, '\1');
    el_set(l->edit, EL_GETCFN, read_character);
    el_set(l->edit, EL_EDITOR, "emacs");
    history(l->history, &event, H_SETSIZE, HISTORY_LINES);
    history(l->history, &event, H_SETUNIQUE, 1);
    el_set(l->edit, EL_HIST, history, l->history);
    el_set(l->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_wset(l->edit, EL_ADDFN, L"duckd-paste", L"Insert what is pasted", paste);
    el_source(l->edit, NULL); // ~/.editrc, as every program with libedit
    el_set(l->edit, EL_BIND, "\\e[200~", "duckd-paste", NULL);
    const char *kind = getenv("TERM");
    l->brackets = kind && *kind && strcmp(kind, "dumb") != 0;
    if (with_history) find_history(l);
    if (l->path[0]) history(l->history, &event, H_LOAD, l->path); // none yet is fine
    return 0;
}

int lines_open(struct lines **out, bool with_history, struct error *err)
{
    struct lines *l = calloc(1, sizeof *l);
    if (!l) return error_set(err, -ENOMEM, "out of memory");
    if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) {
        int rc = open_terminal(l, with_history, err);
        if (rc) {
            lines_close(l);
            return rc;
        }
    }
    *out = l;
    return 0;
}

static void save_history(struct lines *l)
{
    HistEvent event;
    mode_t mask = umask(077);
    make_private_directory(l->path);
    if (history(l->history, &event, H_SAVE, l->path) < 0) {
        log_notice("the history could not be saved in %s", l->path);
    }
    umask(mask);
}

void lines_close(struct lines *l)
{
    if (!l) return;
    if (l->edit && l->path[0]) save_history(l);
    if (l->history) history_end(l->history);
    if (l->edit) el_end(l->edit);
    free(l->line);
    free(l);
}

bool lines_terminal(const struct lines *l)
{
    return l->edit != NULL;
}

/* Copies text[length] into l->line. */
static int keep_line(struct lines *l, const char *text, size_t length, struct error *err)
{
    if (length + 1 > l->capacity) {
        char *grown = realloc(l->line, length + 1);
        if (!grown) return error_set(err, -ENOMEM, "out of memory");
        l->line = grown;
        l->capacity = length + 1;
    }
    memcpy(l->line, text, length);
    l->line[length] = 0;
    return 0;
}

/* Drops blanks around the text; returns what is left of its length. */
static size_t trim(char *text, size_t length)
{
    while (length && memchr(" \t\r\n", text[length - 1], 4)) length--;
    size_t blanks = 0;
    while (blanks < length && memchr(" \t", text[blanks], 2)) blanks++;
    memmove(text, text + blanks, length - blanks);
    text[length - blanks] = 0;
    return length - blanks;
}

/* 1: a line, 0: the end. */
static int edit_line(struct lines *l, const char **text, size_t *length)
{
    for (;;) {
        int count = -1;
        interrupt_catch(true);
        el_set(l->edit, EL_PREP_TERM,
               1); // before the prompt: what is typed behind it is meant for the editor
        mark_pastes(l, true);
        *text = el_gets(l->edit, &count);
        mark_pastes(l, false);
        bool interrupted = interrupt_seen(), ending = interrupt_ending();
        interrupt_release();
        if (interrupted && !ending) { // Ctrl-C: a fresh line
            fputs("^C\n", stdout);
            el_reset(l->edit);
            continue;
        }
        if (ending || !*text || count <= 0) {
            fputc('\n', stdout);
            return 0;
        }
        *length = strlen(*text);
        return 1;
    }
}

int lines_read(struct lines *l, const char **line, size_t *length, struct error *err)
{
    if (l->edit) {
        const char *text;
        size_t bytes;
        HistEvent event;
        if (!edit_line(l, &text, &bytes)) return 0;
        if (strspn(text, " \t\r\n") < bytes) history(l->history, &event, H_ENTER, text);
        int rc = keep_line(l, text, bytes, err);
        if (rc < 0) return rc;
        *length = trim(l->line, bytes);
    } else {
        errno = 0;
        ssize_t bytes = getline(&l->line, &l->capacity, stdin);
        if (bytes < 0 && ferror(stdin))
            return error_set(err, -errno, "stdin cannot be read: %s", strerror(errno));
        if (bytes < 0) return 0;
        *length = trim(l->line, (size_t)bytes);
    }
    *line = l->line;
    return 1;
}
