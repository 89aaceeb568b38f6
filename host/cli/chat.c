/* chat.c: `duckd chat`: a conversation, line by line.
 *
 * Every turn encodes the whole conversation again; the engine finds what it has already read. Ctrl-C while an
 * answer runs stops that answer and keeps its beginning in the conversation. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/cli/answer.h"
#include "host/cli/commands.h"
#include "host/cli/interrupt.h"
#include "host/cli/lines.h"
#include "host/cli/output.h"
#include "host/util/clock.h"
#include "host/util/log.h"

#define END_THINK "</think>"
#define DIM "\033[2m"
#define PLAIN "\033[0m"

struct chat {
    struct session session;
    struct lines *lines;
    bool styled; // stdout is a terminal: thoughts are dim, figures follow an answer
    bool think, dim;
    char *system; // NULL: none
    struct chat_message *messages;
    size_t count, capacity;
};

/* ---- the conversation ---- */

static int add_message(struct chat *c, enum chat_role role, const char *text, size_t length)
{
    if (c->count == c->capacity) {
        size_t capacity = 2 * c->capacity + 16;
        struct chat_message *grown = realloc(c->messages, capacity * sizeof *grown);
        if (!grown) return -ENOMEM;
        c->messages = grown;
        c->capacity = capacity;
    }
    char *copy = malloc(length + 1);
    if (!copy) return -ENOMEM;
    if (length) memcpy(copy, text, length);
    copy[length] = 0;
    c->messages[c->count++] = (struct chat_message){.role = role, .content = copy, .length = length};
    return 0;
}

static void drop_messages(struct chat *c, size_t keep)
{
    while (c->count > keep) free((char *)c->messages[--c->count].content);
}

/* Starts the conversation again, with the system text alone. */
static int reset(struct chat *c)
{
    drop_messages(c, 0);
    return c->system ? add_message(c, CHAT_SYSTEM, c->system, strlen(c->system)) : 0;
}

/* ---- an answer ---- */

static int show_text(void *ctx, const char *text, size_t length, struct error *err)
{
    struct chat *c = ctx;
    if (!c->dim) return output_text(text, length, err);
    const char *end = memmem(text, length, END_THINK, strlen(END_THINK));
    size_t thought = end ? (size_t)(end - text) : length;
    int rc = output_text(text, thought, err);
    if (rc || !end) return rc;
    c->dim = false;
    rc = output_text(PLAIN "\n\n", strlen(PLAIN) + 2, err);
    return rc ? rc : output_text(end + strlen(END_THINK), length - thought - strlen(END_THINK), err);
}

static void say_how_it_went(const struct chat *c, const struct answer *a, size_t prompt)
{
    struct answer_figures f;
    const struct session *s = &c->session;
    answer_measure(a, &f);
    if (a->interrupted) log_notice("(stopped)");
    if (a->result.reason == FINISH_LENGTH) {
        if (prompt + a->count >= s->config.max_positions) {
            log_notice("(the conversation fills the model's %u positions: /reset starts a new one)",
                       s->config.max_positions);
        } else {
            log_notice("(stopped after %zu token%s, as -n says)", a->count, a->count == 1 ? "" : "s");
        }
    }
    if (c->styled && a->count > 1) {
        log_detail(DIM "%zu tokens in, %zu out, first after %.0f ms, then %.1f tok/s" PLAIN, prompt, a->count,
                   f.ttft_ms, f.decode_tok_s);
    }
}

/* What later turns see of an answer: not its thoughts, also when those were cut short. */
static int keep_answer(struct chat *c, const struct answer *a)
{
    const char *text = a->text.text, *end = text;
    size_t length = a->text.length;
    if (c->think) {
        end = length ? memmem(text, length, END_THINK, strlen(END_THINK)) : NULL;
        end = end ? end + strlen(END_THINK) : text + length;
    }
    return add_message(c, CHAT_ASSISTANT, end, length - (size_t)(end - text));
}

static int answer_turn(struct chat *c, const struct ids *prompt, double spent_ms, struct error *err)
{
    struct session *s = &c->session;
    struct answer a;
    struct question q = question_of(s, prompt, spent_ms);
    q.on_text = show_text;
    q.ctx = c;
    c->dim = c->think && c->styled;
    if (c->dim) fputs(DIM, stdout);
    interrupt_catch(true);
    int rc = answer_make(s, &q, &a, err);
    bool ending = interrupt_ending();
    interrupt_release();
    if (c->dim) fputs(PLAIN, stdout);
    int printed = output_text("\n", 1, err);
    if (!rc) rc = printed;
    if (!rc) say_how_it_went(c, &a, prompt->count);
    if (!rc && keep_answer(c, &a)) rc = error_set(err, -ENOMEM, "out of memory");
    answer_free(&a);
    return !rc && ending ? -EINTR : rc;
}

/* A message of the user, answered. An error of one turn does not end the chat. */
static int turn(struct chat *c, const char *line, size_t length, struct error *err)
{
    struct session *s = &c->session;
    struct ids prompt = {0};
    size_t before = c->count;
    uint64_t start = clock_ns();
    if (add_message(c, CHAT_USER, line, length)) return error_set(err, -ENOMEM, "out of memory");
    const struct chat_request chat = {.messages = c->messages, .count = c->count, .thinking = c->think};
    int rc = chat_encode(&s->chat, s->tokenizer, &chat, &prompt, err);
    double spent_ms = (double)(clock_ns() - start) / 1e6;
    if (!rc && prompt.count >= s->config.max_positions) {
        rc = error_set(
            err, -E2BIG,
            "with this message the conversation has %zu tokens, %s holds %u positions: /reset starts "
            "a new one",
            prompt.count, s->dir, s->config.max_positions);
    }
    if (!rc) rc = answer_turn(c, &prompt, spent_ms, err);
    ids_free(&prompt);
    if (rc && rc != -EINTR) drop_messages(c, before);
    return rc;
}

/* ---- commands ---- */

static const char help[] =
    "/reset          start a new conversation\n"
    "/think          switch thinking before the answer on or off\n"
    "/system TEXT    start a new conversation under this system text (none: without one)\n"
    "/help           this list\n"
    "/quit           leave (so does Ctrl-D); Ctrl-C stops an answer";

static int set_system(struct chat *c, const char *text)
{
    char *copy = *text ? strdup(text) : NULL;
    if (*text && !copy) return -ENOMEM;
    free(c->system);
    c->system = copy;
    return reset(c);
}

/* 1: leave, 0: done, negative: failed. */
static int slash_command(struct chat *c, const char *line, struct error *err)
{
    size_t length = strcspn(line, " \t");
    const char *rest = line + length + strspn(line + length, " \t");
    int rc = 0;
    if (!strncmp(line, "/quit", length) && length == 5) return 1;
    if (!strncmp(line, "/help", length) && length == 5) {
        log_notice("%s", help);
    } else if (!strncmp(line, "/reset", length) && length == 6) {
        rc = reset(c);
        log_notice("(new conversation)");
    } else if (!strncmp(line, "/think", length) && length == 6) {
        bool possible = c->session.end_think >= 0;
        c->think = possible && !c->think;
        log_notice("(thinking is %s)", c->think ? "on" : possible ? "off" : "nothing this model can do");
    } else if (!strncmp(line, "/system", length) && length == 7) {
        rc = set_system(c, rest);
        log_notice("(new conversation %s system text)", *rest ? "under this" : "without");
    } else if (lines_terminal(c->lines)) {
        log_notice("there is no %.*s; /help lists what there is", (int)length, line);
    } else { // nobody is there to say it again: a message that was meant would be lost
        return error_set(err, -EINVAL, "there is no %.*s; /help lists what there is", (int)length, line);
    }
    return rc ? error_set(err, rc, "out of memory") : 0;
}

/* "/etc/hosts is a file" is a message, "/reset" is a command. */
static bool is_command(const char *line)
{
    size_t letters = line[0] == '/' ? strspn(line + 1, "abcdefghijklmnopqrstuvwxyz") : 0;
    return letters && strchr(" \t", line[1 + letters]) != NULL; // strchr finds the final NUL too
}

static int converse(struct chat *c, struct error *err)
{
    for (;;) {
        const char *line;
        size_t length;
        int rc = lines_read(c->lines, &line, &length, err);
        if (rc <= 0) return rc;
        if (length == 0) continue;
        if (is_command(line)) {
            rc = slash_command(c, line, err);
            if (rc > 0) return 0;
        } else {
            rc = turn(c, line, length, err);
            if (rc == -E2BIG) { // the person can do something about it
                log_error("%s", err->text);
                rc = lines_terminal(c->lines) ? 0 : rc;
                if (rc) err->text[0] = 0;
            }
        }
        if (rc) return rc;
    }
}

static void greet(const struct chat *c)
{
    if (!lines_terminal(c->lines)) return;
    uint32_t ducks = flock_ducks(engine_flock(c->session.engine));
    log_notice("%s, %u duck%s. /help lists commands, Ctrl-C stops an answer, Ctrl-D leaves.", c->session.dir,
               ducks, ducks == 1 ? "" : "s");
}

int command_chat(const struct options *o, struct error *err)
{
    struct chat c = {.think = o->think, .styled = isatty(STDOUT_FILENO) == 1};
    int rc = session_prepare(&c.session, o, SESSION_CHAT, err);
    if (rc) return rc;
    c.session.kv_cache_bytes = (uint64_t)o->kv_cache_mb << 20;
    if (o->system && set_system(&c, o->system)) rc = error_set(err, -ENOMEM, "out of memory");
    if (!rc && o->think && c.session.end_think < 0) {
        rc = error_set(err, -EINVAL, "--think: %s has no <think> token", c.session.dir);
    }
    if (!rc) rc = session_load(&c.session, err);
    if (!rc) rc = lines_open(&c.lines, !o->no_history, err);
    if (!rc) {
        greet(&c);
        rc = converse(&c, err);
    }
    lines_close(c.lines);
    drop_messages(&c, 0);
    free(c.messages);
    free(c.system);
    session_close(&c.session);
    return rc;
}
