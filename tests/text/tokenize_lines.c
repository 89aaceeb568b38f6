/* tokenize_lines.c: a tokenizer as a filter, for comparisons with other programs. usage: tokenize-lines
 * TOKENIZER
 *
 * Each line of stdin is a request and gets one line on stdout:
 *   p HEX     ids of the bytes, as ordinary text
 *   a HEX     the same with added tokens recognised
 *   s HEX     lengths in bytes of the pieces that the pre-tokenizer cuts
 *   u         the code points that have no character in this machine's PCRE2 (its version of Unicode)
 *   d ID ...  the text of ids in hex, added tokens kept, through the incremental detokenizer */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/text/tokenizer_internal.h"
#include "host/text/utf8.h"

static int fail(const char *what)
{
    fprintf(stderr, "tokenize-lines: %s\n", what);
    return 1;
}

/* In place; the digits of a byte are read before it is written. */
static int from_hex(char *hex, size_t *length)
{
    *length = strlen(hex) / 2;
    for (size_t i = 0; i < *length; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1) return fail("a line that is no hex");
        hex[i] = (char)byte;
    }
    return 0;
}

static int print_piece(void *arg, const char *piece, size_t length, struct error *err)
{
    (void)arg, (void)piece, (void)err;
    printf("%zu ", length);
    return 0;
}

static int print_pieces(const struct tokenizer *t, const char *text, size_t length)
{
    struct splitting s;
    struct error err = {0};
    if (splitting_open(&s, &t->pretokenizer, print_piece, NULL, &err)) return fail(err.text);
    int rc = splitting_run(&s, text, length);
    splitting_close(&s);
    putchar('\n');
    return rc ? fail(err.text) : 0;
}

static int print_ids(const struct tokenizer *t, const char *text, size_t length, bool allow_added)
{
    struct ids ids = {0};
    struct error err = {0};
    if (tokenizer_encode(t, text, length, allow_added, &ids, &err)) return fail(err.text);
    for (size_t i = 0; i < ids.count; i++) printf("%s%d", i ? " " : "", ids.id[i]);
    putchar('\n');
    ids_free(&ids);
    return 0;
}

static void print_hex(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) printf("%02x", (unsigned char)text[i]);
}

static int print_text(const struct tokenizer *t, const char *list)
{
    struct detokenizer d = {.keep_added = true};
    char *out = malloc(tokenizer_max_text(t) + 16);
    if (!out) return fail("out of memory");
    char *end;
    for (;; list = end) {
        long id = strtol(list, &end, 10);
        if (end == list) break;
        print_hex(out, detokenizer_push(&d, t, (int32_t)id, out));
    }
    print_hex(out, detokenizer_finish(&d, out));
    putchar('\n');
    free(out);
    return 0;
}

static int print_code_point(void *arg, const char *piece, size_t length, struct error *err)
{
    (void)arg, (void)err;
    printf("%u ", utf8_code_point((const unsigned char *)piece, (int)length));
    return 0;
}

static int print_unassigned(void)
{
    struct pretokenizer only_unassigned = {0};
    struct splitting s;
    struct error err = {0};
    if (pretokenizer_add(&only_unassigned, "\\p{Cn}", false, false, true, &err) ||
        splitting_open(&s, &only_unassigned, print_code_point, NULL, &err))
        return fail(err.text);
    int rc = 0;
    for (uint32_t c = 0x80; c < 0x110000 && !rc; c++) {
        char text[4] = {(char)(0xf0 | c >> 18), (char)(0x80 | (c >> 12 & 0x3f)),
                        (char)(0x80 | (c >> 6 & 0x3f)), (char)(0x80 | (c & 0x3f))};
        size_t skip = c < 0x800 ? 2 : c < 0x10000 ? 1 : 0;
        if (skip == 2) text[2] = (char)(0xc0 | c >> 6);
        if (skip == 1) text[1] = (char)(0xe0 | c >> 12);
        if (c < 0xd800 || c > 0xdfff) rc = splitting_run(&s, text + skip, 4 - skip);
    }
    putchar('\n');
    splitting_close(&s);
    pretokenizer_free(&only_unassigned);
    return rc ? fail(err.text) : 0;
}

static int answer(const struct tokenizer *t, char *line)
{
    size_t length;
    if (line[0] == 'd') return print_text(t, line + 1);
    if (line[0] == 'u') return print_unassigned();
    if (!line[0] || !strchr("aps", line[0])) return fail("a line that begins with none of a, p, s, u, d");
    if (from_hex(line + 2, &length)) return 1;
    return line[0] == 's' ? print_pieces(t, line + 2, length)
                          : print_ids(t, line + 2, length, line[0] == 'a');
}

int main(int argc, char **argv)
{
    if (argc != 2) return fail("usage: tokenize-lines TOKENIZER");
    struct tokenizer *t = NULL;
    struct error err = {0};
    if (tokenizer_open(&t, argv[1], &err)) return fail(err.text);
    char *line = NULL;
    size_t room = 0;
    int status = 0;
    for (ssize_t n; !status && (n = getline(&line, &room, stdin)) > 0;) {
        line[strcspn(line, "\n")] = '\0';
        status = answer(t, line);
    }
    free(line);
    tokenizer_close(t);
    return status;
}
