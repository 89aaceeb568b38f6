/* fuzz_tokenizer.c: a tokenizer.json from arbitrary bytes, and text through what is accepted. The input is
 * the file, a NUL, and the text; without a NUL the file is the text, too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/text/tokenizer_internal.h"
#include "host/text/utf8.h"

#define LONGEST_TEXT 2048u // patterns made by mutation may backtrack much

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "accepted although not: %s\n", what);
    abort();
}

static int drops_text(const struct tokenizer *t)
{
    int drops = 0;
    for (size_t i = 0; i < t->pretokenizer.stages; i++)
        drops |= t->pretokenizer.stage[i].drop_matches || t->pretokenizer.stage[i].drop_gaps;
    return drops;
}

/* The text of ids is what a lossy decoder sees in the bytes they came from. */
static void check_text(const struct tokenizer *t, const struct ids *ids, const uint8_t *text, size_t size)
{
    char *expected = malloc(3 * size + 1), *got = malloc((ids->count + 1) * (tokenizer_max_text(t) + 16));
    if (!expected || !got) abort();
    struct detokenizer d = {.keep_added = true};
    size_t length = utf8_lossy(text, size, expected), used = 0;
    for (size_t i = 0; i < ids->count; i++) used += detokenizer_push(&d, t, ids->id[i], got + used);
    used += detokenizer_finish(&d, got + used);
    require(used == length && memcmp(got, expected, length) == 0, "decoding gives the text back");
    free(expected);
    free(got);
}

static void check_encoding(const struct tokenizer *t, const uint8_t *text, size_t size, bool allow_added)
{
    struct ids ids = {0};
    struct error err = {""};
    if (tokenizer_encode(t, (const char *)text, size, allow_added, &ids, &err)) {
        require(err.text[0] != '\0' && ids.count == 0, "a failed encoding says why and leaves nothing");
    } else {
        for (size_t i = 0; i < ids.count; i++)
            require(ids.id[i] >= 0 && (uint32_t)ids.id[i] < tokenizer_size(t), "ids in range");
        if (!allow_added && !drops_text(t)) check_text(t, &ids, text, size);
    }
    ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size ? memchr(data, '\0', size) : NULL;
    size_t length = nul ? (size_t)(nul - data) : size;
    const uint8_t *text = nul ? nul + 1 : data;
    size_t text_size = nul ? size - length - 1 : size;
    if (text_size > LONGEST_TEXT) text_size = LONGEST_TEXT;

    char *file = malloc(length + 1);
    struct tokenizer *t = calloc(1, sizeof *t);
    struct error err = {""};
    if (!file || !t) abort();
    if (length) memcpy(file, data, length);
    file[length] = '\0';
    if (tokenizer__load(t, file, length, &err)) {
        require(err.text[0] != '\0' && !strchr(err.text, '\n'), "one line says why");
    } else {
        check_encoding(t, text, text_size, false);
        check_encoding(t, text, text_size, true);
    }
    tokenizer_close(t);
    free(file);
    return 0;
}
