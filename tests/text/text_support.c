// text_support.c
#include "tests/text/text_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/text/utf8.h"

struct tokenizer *open_tokenizer(const char *path)
{
    struct tokenizer *t = NULL;
    struct error err = {0};
    if (tokenizer_open(&t, path, &err)) fail_msg("%s", err.text);
    return t;
}

struct tokenizer *duckling;

int open_duckling(void **state)
{
    (void)state;
    duckling = open_tokenizer(SOURCE_DIR "/models/duckling");
    return 0;
}

int close_duckling(void **state)
{
    (void)state;
    tokenizer_close(duckling);
    return 0;
}

cJSON *read_json(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s cannot be opened", path);
    fseek(file, 0, SEEK_END);
    size_t length = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(length + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, length, file), length);
    text[length] = '\0';
    fclose(file);
    for (char *nul = text; (nul = strstr(nul, "\\u0000"));) memcpy(nul, "\\ue000", 6);
    cJSON *json = cJSON_Parse(text);
    free(text);
    if (!json) fail_msg("%s is no JSON", path);
    return json;
}

const char *text_of(const cJSON *string, size_t *length)
{
    char *text = string->valuestring, *to = text;
    for (const char *from = text; *from;) {
        if (strncmp(from, "\xee\x80\x80", 3) == 0) {
            *to++ = '\0';
            from += 3;
        } else {
            *to++ = *from++;
        }
    }
    *length = (size_t)(to - text);
    return text;
}

char *decode(const struct tokenizer *t, const int32_t *id, size_t count, bool keep_added, size_t *length)
{
    struct detokenizer d = {.keep_added = keep_added};
    size_t room = tokenizer_max_text(t) + 16, used = 0;
    char *text = malloc((count + 1) * room);
    assert_non_null(text);
    for (size_t i = 0; i <= count; i++) {
        char *part = text + used;
        size_t n = i < count ? detokenizer_push(&d, t, id[i], part) : detokenizer_finish(&d, part);
        assert_true(n < room);
        assert_int_equal(part[n], '\0');
        assert_int_equal(utf8_valid_length((unsigned char *)part, n), n);
        used += n;
    }
    *length = used;
    return text;
}

void assert_ids(const struct ids *got, const cJSON *expected, const char *what)
{
    size_t count = (size_t)cJSON_GetArraySize(expected), i = 0;
    if (got->count != count) fail_msg("%s: %zu ids, %zu expected", what, got->count, count);
    for (const cJSON *e = expected->child; e; e = e->next, i++)
        if (got->id[i] != e->valueint)
            fail_msg("%s: id %d at %zu, %d expected", what, got->id[i], i, e->valueint);
}

uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

void skip_without(const char *path)
{
    if (access(path, R_OK) == 0) return;
    printf("SKIPPED: %s is not there; tests/text/npm_setup.sh fetches it\n", path);
    exit(EXIT_SKIPPED);
}
