/* chat_test.c: `duckd chat`, piped and on a real (pseudo) terminal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/cli/support.h"

#define PROMPT ">\033[0m "

struct piped {
    const char *name, *input, *options, *out;
    int status;
};

static const struct piped piped[] = {
    {"an answer a line", "What is the capital of Japan?\n", "", "The capital of Japan is Tokyo.\n", 0},
    {"no newline at the end", "What is the capital of Japan?", "", "The capital of Japan is Tokyo.\n", 0},
    {"nothing at all", "", "", "", 0},
    {"empty lines are no messages", "\n \n\t\n", "", "", 0},
    {"the conversation goes on", "My name is Anna.\nWhat is my name?\n", "",
     "Hello Anna! Nice to meet you.\nYour name is Anna.\n", 0},
    {"quit leaves", "/quit\nHello\n", "", "", 0},
    {"commands answer on stderr", "/help\n/system x\n/reset\n", "", "", 0},
    {"at most n tokens", "What is the capital of Japan?\n", "-n 3", "The capital of\n", 0},
    {"thoughts are part of a piped answer", "/think\nIs 91 prime?\n", "",
     "91 is divisible by 7, because 91 = 7 * 13.</think>No, 91 is not prime: 91 = 7 * 13.\n", 0},
};

static void piped_lines_get_answers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof piped / sizeof piped[0]; i++) {
        write_scratch("in", piped[i].input);
        struct outcome o = run("$D chat %s < in", piped[i].options);
        if (strcmp(o.out, piped[i].out) != 0) print_error("%s: %s\n", piped[i].name, o.err);
        assert_string_equal(o.out, piped[i].out);
        assert_int_equal(o.status, piped[i].status);
        outcome_free(&o);
    }
}

/* What lies behind a NUL is a part of the message: another conversation than without it. */
static void a_nul_does_not_cut_a_line(void **state)
{
    (void)state;
    struct outcome o = run("printf 'What is\\000 the capital of Japan?\n' | $D chat");
    assert_int_equal(o.status, 0);
    assert_non_null(strstr(o.out, "Tokyo"));
    outcome_free(&o);
}

static void a_reset_forgets(void **state)
{
    (void)state;
    write_scratch("in", "My name is Anna.\n/reset\nWhat is my name?\n");
    struct outcome o = run("$D chat < in");
    assert_null(strstr(strchr(o.out, '\n'), "Anna"));
    assert_non_null(strstr(o.err, "(new conversation)"));
    outcome_free(&o);
}

static void a_piped_command_that_is_none_fails(void **state)
{
    (void)state;
    struct outcome o = run("printf 'Hello\n/fast\nHello\n' | $D chat --backend cpu -q");
    assert_int_equal(o.status, 1);
    assert_string_equal(o.out, "Hello! I am Duckling. What would you like to know?\n");
    assert_string_equal(o.err, "duckd: there is no /fast; /help lists what there is\n");
    outcome_free(&o);
}

static void a_full_context_is_said(void **state)
{
    (void)state;
    struct outcome o =
        run("(for i in $(seq 4100); do printf 'duck '; done; echo; echo Hello) | $D chat --backend cpu");
    assert_int_equal(o.status, 1);
    assert_non_null(strstr(o.err, "holds 4096 positions: /reset starts a new one"));
    assert_int_equal(lines_in(o.err), 1);
    outcome_free(&o);
}

/* Ctrl-C stops an answer, and drops a line; Ctrl-D leaves; lines can be edited and are remembered. */
static void a_terminal_can_stop_answers(void **state)
{
    static const char *const arguments[] = {"chat", "--ignore-eos", "-n", "3500", NULL};
    (void)state;
    struct child c = child_start(1, arguments);
    size_t at = child_expect(&c, 0, "/help lists commands");
    at = child_expect(&c, at, PROMPT);
    child_type(&c, "What is a dog\b\b\bduck?\r");
    at = child_expect(&c, at, "A duck is a small");
    child_type(&c, "\003");
    at = child_expect(&c, at, "(stopped)");
    at = child_expect(&c, at, PROMPT);
    child_type(&c, "half a li");
    at = child_expect(&c, at, "half a li");
    child_type(&c, "\003");
    at = child_expect(&c, at, PROMPT);
    child_type(&c, "/system be a duck\r");
    at = child_expect(&c, at, "(new conversation under this system text)");
    at = child_expect(&c, at, PROMPT);
    child_type(&c, "Hello\r");
    at = child_expect(&c, at, "Hello!");
    child_type(&c, "\003");
    at = child_expect(&c, at, "(stopped)");
    child_expect(&c, at, PROMPT);
    child_type(&c, "\004");
    assert_int_equal(child_end(&c), 0);

    char *history = read_scratch("duckd/chat_history", NULL), path[128];
    struct stat st;
    assert_non_null(strstr(history, "What\\040is\\040a\\040duck?"));
    assert_null(strstr(history, "half"));
    snprintf(path, sizeof path, "%s/duckd/chat_history", scratch());
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    free(history);
}

static void history_can_be_left_out(void **state)
{
    static const char *const arguments[] = {"chat", "--no-history", NULL};
    (void)state;
    struct child c = child_start(1, arguments);
    size_t at = child_expect(&c, 0, PROMPT);
    child_type(&c, "/reset\r");
    at = child_expect(&c, at, "(new conversation)");
    child_expect(&c, at, PROMPT); // before it the terminal is in line mode, and Ctrl-D something else
    child_type(&c, "\004");
    assert_int_equal(child_end(&c), 0);
    struct outcome o = run("cat duckd/chat_history 2>/dev/null | grep -c reset");
    assert_string_equal(o.out, "0\n");
    outcome_free(&o);
}

/* One message, whatever its length and the line ends in it, which Enter sends and the history keeps. */
static void a_pasted_text_is_one_message(void **state)
{
    static const char *const arguments[] = {"chat", "-n", "3", NULL};
    (void)state;
    struct child c = child_start(1, arguments);
    size_t at = child_expect(&c, 0, PROMPT);
    child_type(&c, "!\002Say:\033[200~ one\rtwo\nthree\r\nfour\033[201~");
    at = child_expect(&c, at, "four");
    child_type(&c, "\r");
    at = child_expect(&c, at, "(stopped after 3 tokens, as -n says)");
    at = child_expect(&c, at, PROMPT);

    char text[25000] = "\033[200~";
    for (size_t i = strlen(text); i < 24980; i += 5) strcpy(text + i, i % 8 ? "duck " : "duck\r");
    strcat(text, "\033[201~\r");
    child_type(&c, text);
    at = child_expect(&c, at, "with this message the conversation has");
    at = child_expect(&c, at, PROMPT);
    child_type(&c, "\033[200~never ending\003");
    at = child_expect(&c, at, "^C");
    child_expect(&c, at, PROMPT);
    child_type(&c, "\004");
    assert_int_equal(child_end(&c), 0);

    char *history = read_scratch("duckd/chat_history", NULL);
    assert_non_null(strstr(history, "\nSay:\\040one\\012two\\012three\\012four!"));
    assert_null(strstr(history, "never"));
    free(history);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(piped_lines_get_answers),
        cmocka_unit_test(a_nul_does_not_cut_a_line),
        cmocka_unit_test(a_reset_forgets),
        cmocka_unit_test(a_piped_command_that_is_none_fails),
        cmocka_unit_test(a_full_context_is_said),
        cmocka_unit_test(history_can_be_left_out),
        cmocka_unit_test(a_terminal_can_stop_answers),
        cmocka_unit_test(a_pasted_text_is_one_message),
    };
    return cmocka_run_group_tests_name("cli chat", tests, NULL, remove_scratch);
}
