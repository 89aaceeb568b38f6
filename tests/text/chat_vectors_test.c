/* chat_vectors_test.c: requests -> prompts, against what the publisher's own encoders make of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/http/request_body.h"
#include "tests/text/text_support.h"

static char *prompt_of(const struct tokenizer *t, const char *format, bool thinking, const char *body)
{
    struct chat_encoding c;
    struct error err;
    if (chat_encoding_init(&c, t, 0, 1, &err)) fail_msg("%s", err.text);
    c.tools = strcmp(format, "v3.1") == 0 ? CHAT_TOOLS_V31 : CHAT_TOOLS_DSML;
    const struct http_options o = {.tokenizer = t, .chat = &c};
    struct request r = {.body = {.data = (char *)(uintptr_t)body, .length = strlen(body)}};
    struct chat_request chat = {.thinking = thinking};
    struct api_problem p;
    struct ids ids = {0};
    cJSON *root = NULL;
    int rc = body_parse(&r, &root, &p);
    if (!rc) rc = tools_read(root, &chat, &p);
    if (!rc) rc = messages_encode(&o, root, &chat, &ids, &p);
    if (rc) fail_msg("%s", p.text.text);
    size_t length;
    char *text = decode(t, ids.id, ids.count, true, &length);
    assert_int_equal(strlen(text), length);
    cJSON_Delete(root);
    ids_free(&ids);
    return text;
}

static void compare(const char *got, const char *want, unsigned line)
{
    size_t at = 0;
    while (got[at] && got[at] == want[at]) at++;
    if (got[at] == want[at]) return;
    size_t from = at < 60 ? 0 : at - 60;
    fail_msg("line %u, byte %zu:\n...%.120s\ninstead of\n...%.120s", line, at, got + from, want + from);
}

static void prompts_are_those_of_the_publisher(void **state)
{
    (void)state;
    struct tokenizer *t = open_tokenizer("models/duckling");
    FILE *f = fopen("tests/goldens/chat-encodings/vectors.jsonl", "r");
    char *line = NULL;
    size_t size = 0;
    unsigned lines = 0;
    assert_non_null(f);
    while (getline(&line, &size, f) > 0) {
        cJSON *v = cJSON_Parse(line);
        assert_non_null(v);
        char *got = prompt_of(t, cJSON_GetStringValue(cJSON_GetObjectItem(v, "format")),
                              cJSON_IsTrue(cJSON_GetObjectItem(v, "thinking")),
                              cJSON_GetStringValue(cJSON_GetObjectItem(v, "request")));
        compare(got, cJSON_GetStringValue(cJSON_GetObjectItem(v, "prompt")), ++lines);
        free(got);
        cJSON_Delete(v);
    }
    assert_int_equal(lines, 32);
    free(line);
    fclose(f);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(prompts_are_those_of_the_publisher)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
