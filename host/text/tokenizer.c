// tokenizer.c: text -> ids: lossy decoding, added tokens, pre-tokenizer, merges.
#include "host/text/tokenizer_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/text/utf8.h"

#define MAX_FILE ((off_t)256 << 20)
#define MAX_TEXT                                                                                             \
    ((size_t)1 << 30) // positions in a piece are 32-bit, and lossy decoding can triple the length

int ids_push(struct ids *ids, int32_t id)
{
    if (ids->count == ids->capacity) {
        size_t capacity = ids->capacity ? 2 * ids->capacity : 64;
        int32_t *grown = realloc(ids->id, capacity * sizeof *grown);
        if (!grown) return -ENOMEM;
        ids->id = grown;
        ids->capacity = capacity;
    }
    ids->id[ids->count++] = id;
    return 0;
}

void ids_free(struct ids *ids)
{
    free(ids->id);
    *ids = (struct ids){0};
}

static int read_file(const char *path, char **text, size_t *length, struct error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a FIFO is refused, not waited for
    FILE *file = fd < 0 ? NULL : fdopen(fd, "rb");
    struct stat st;
    if (!file || fstat(fileno(file), &st)) {
        int code = errno;
        if (file)
            fclose(file);
        else if (fd >= 0)
            close(fd);
        return error_set(err, -code, "%s: %s", path, strerror(code));
    }
    int rc = 0;
    *text = NULL;
    *length = 0;
    if (!S_ISREG(st.st_mode) || st.st_size > MAX_FILE) {
        rc = error_set(err, -EINVAL, "%s: not a regular file of at most %lld bytes", path,
                       (long long)MAX_FILE);
    } else if (!(*text = malloc((size_t)st.st_size + 1))) {
        rc = error_set(err, -ENOMEM, "%s: out of memory for %lld bytes", path, (long long)st.st_size);
    } else {
        *length = fread(*text, 1, (size_t)st.st_size, file);
        (*text)[*length] = '\0';
        if (*length != (size_t)st.st_size)
            rc = error_set(err, -EIO, "%s: read %zu of %lld bytes", path, *length, (long long)st.st_size);
    }
    fclose(file);
    return rc;
}

int tokenizer_open(struct tokenizer **out, const char *dir_or_file, struct error *err)
{
    *out = NULL;
    char path[PATH_MAX];
    struct stat st;
    bool is_dir = stat(dir_or_file, &st) == 0 && S_ISDIR(st.st_mode);
    int n = snprintf(path, sizeof path, "%s%s", dir_or_file, is_dir ? "/tokenizer.json" : "");
    if (n < 0 || (size_t)n >= sizeof path)
        return error_set(err, -ENAMETOOLONG, "'%.100s...': path too long", dir_or_file);

    char *text = NULL;
    size_t length = 0;
    int rc = read_file(path, &text, &length, err);
    struct tokenizer *t = NULL;
    if (!rc && !(t = calloc(1, sizeof *t))) rc = error_set(err, -ENOMEM, "%s: out of memory", path);
    if (!rc && (rc = tokenizer__load(t, text, length, err))) error_prefix(err, "%s", path);
    free(text);
    if (rc)
        tokenizer_close(t);
    else
        *out = t;
    return rc;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t) return;
    for (uint32_t i = 0; i < t->size; i++) free(t->token[i].bytes);
    free(t->token);
    for (int s = 0; s < 2; s++) {
        for (size_t i = 0; i < t->added[s].count; i++) free(t->added[s].token[i].text);
        free(t->added[s].token);
    }
    bpe_free(&t->bpe);
    pretokenizer_free(&t->pretokenizer);
    free(t);
}

/* One call's working memory. */
struct encoder {
    const struct tokenizer *t;
    struct splitting splitting;
    struct bpe_scratch scratch;
    struct ids *out;
    struct error *err;
};

static int encode_piece(void *arg, const char *piece, size_t length, struct error *err)
{
    struct encoder *e = arg;
    int rc = bpe_encode(&e->t->bpe, &e->scratch, (const unsigned char *)piece, length, e->out);
    return rc ? error_set(err, rc, "out of memory for a piece of %zu bytes", length) : 0;
}

/* Takes the added tokens of sets `set`... out of the text; what is between them is ordinary text. */
static int encode_from(struct encoder *e, int set, const char *text, size_t length)
{
    if (set == 2) return splitting_run(&e->splitting, text, length);
    size_t done = 0, at = 0;
    const struct added_token *found;
    while ((found = added_set_find(&e->t->added[set], text, length, done, &at))) {
        int rc = encode_from(e, set + 1, text + done, at - done);
        if (!rc && (rc = ids_push(e->out, found->id))) error_set(e->err, rc, "out of memory for token ids");
        if (rc) return rc;
        done = at + found->length;
    }
    return encode_from(e, set + 1, text + done, length - done);
}

static int encode_valid(const struct tokenizer *t, const char *text, size_t length, bool allow_added,
                        struct ids *out, struct error *err)
{
    struct encoder e = {.t = t, .out = out, .err = err};
    int rc = splitting_open(&e.splitting, &t->pretokenizer, encode_piece, &e, err);
    if (rc) return rc;
    rc = encode_from(&e, allow_added ? 0 : 2, text, length);
    splitting_close(&e.splitting);
    bpe_scratch_free(&e.scratch);
    return rc;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t length, bool allow_added,
                     struct ids *out, struct error *err)
{
    if (length == 0) return 0;
    if (length > MAX_TEXT)
        return error_set(err, -EFBIG, "text of %zu bytes to encode; at most %zu at a time", length, MAX_TEXT);
    const unsigned char *bytes = (const unsigned char *)text;
    char *replaced = NULL;
    if (utf8_valid_length(bytes, length) < length) {
        size_t lossy = utf8_lossy(bytes, length, NULL);
        if (!(replaced = malloc(lossy)))
            return error_set(err, -ENOMEM, "out of memory for text of %zu bytes", lossy);
        length = utf8_lossy(bytes, length, replaced);
        text = replaced;
    }
    size_t before = out->count;
    int rc = encode_valid(t, text, length, allow_added, out, err);
    if (rc) out->count = before;
    free(replaced);
    return rc;
}

const char *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *length, bool *added)
{
    if (id < 0 || (uint32_t)id >= t->size || !t->token[id].bytes) return NULL;
    *length = t->token[id].length;
    *added = t->token[id].added;
    return t->token[id].bytes;
}

int32_t tokenizer_added(const struct tokenizer *t, const char *text)
{
    size_t length = strlen(text);
    for (int s = 0; s < 2; s++)
        for (size_t i = 0; i < t->added[s].count; i++)
            if (t->added[s].token[i].length == length && memcmp(t->added[s].token[i].text, text, length) == 0)
                return t->added[s].token[i].id;
    return -1;
}

uint32_t tokenizer_size(const struct tokenizer *t)
{
    return t->size;
}

size_t tokenizer_max_text(const struct tokenizer *t)
{
    return t->max_text;
}
