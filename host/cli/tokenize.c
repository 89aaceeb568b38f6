/* tokenize.c: `duckd tokenize`: text -> ids and back. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/cli/commands.h"
#include "host/cli/input.h"
#include "host/cli/output.h"
#include "host/cli/session.h"

static int print_ids(const struct session *s, struct error *err)
{
    const struct options *o = s->options;
    char *text = NULL;
    size_t length = o->prompt ? strlen(o->prompt) : 0;
    struct ids ids = {0};
    int rc = o->prompt ? 0 : input_text(o->file, &text, &length, err);
    if (!rc)
        rc = tokenizer_encode(s->tokenizer, text ? text : o->prompt, length, o->allow_special, &ids, err);
    if (!rc) {
        putchar('[');
        for (size_t i = 0; i < ids.count; i++) printf(i ? ", %d" : "%d", ids.id[i]);
        puts("]");
        rc = output_finish(err);
    }
    free(text);
    ids_free(&ids);
    return rc;
}

/* The exact bytes and nothing else, except that a terminal gets its line ended. */
static int print_text(const struct session *s, struct error *err)
{
    struct ids ids = {0};
    struct detokenizer d = {.keep_added = true};
    const char *path = s->options->decode;
    int rc = input_ids(path, &ids, err);
    if (!rc) rc = input_check_ids(&ids, tokenizer_size(s->tokenizer), input_name(path), err);
    char *piece = malloc(tokenizer_max_text(s->tokenizer) + 16);
    if (!rc && !piece) rc = error_set(err, -ENOMEM, "out of memory");
    for (size_t i = 0; !rc && i < ids.count; i++) {
        fwrite(piece, 1, detokenizer_push(&d, s->tokenizer, ids.id[i], piece), stdout);
    }
    if (!rc) {
        fwrite(piece, 1, detokenizer_finish(&d, piece), stdout);
        if (isatty(STDOUT_FILENO)) putchar('\n');
        rc = output_finish(err);
    }
    free(piece);
    ids_free(&ids);
    return rc;
}

int command_tokenize(const struct options *o, struct error *err)
{
    struct session s;
    int rc = session_prepare(&s, o, SESSION_TOKENIZER, err);
    if (rc) return rc;
    rc = o->decode ? print_text(&s, err) : print_ids(&s, err);
    session_close(&s);
    return rc;
}
