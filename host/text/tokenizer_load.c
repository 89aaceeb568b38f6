/* tokenizer_load.c: tokenizer.json -> struct tokenizer.
 *
 * Everything in the file that would change ids or text and is not implemented is refused by name. Settings of
 * other programs' callers (post_processor: BOS and offsets) are not looked at: this tokenizer never adds
 * anything. */
#include "host/text/tokenizer_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "host/text/byte_level.h"
#include "host/text/utf8.h"
#include "host/text/vocabulary.h"
#include "host/util/json_depth.h"

#define MAX_TOKENS (1 << 22) // published vocabularies stay below 300,000

struct loader {
    struct tokenizer *t;
    struct vocabulary vocabulary;
    char *joined; // the two texts of a merge
    size_t joined_capacity;
    struct error *err;
};

static const cJSON *get(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static bool is_set(const cJSON *item) // neither absent, null nor false
{
    return item && !cJSON_IsNull(item) && !cJSON_IsFalse(item);
}

static const char *type_of(const cJSON *item)
{
    const char *type = cJSON_GetStringValue(get(item, "type"));
    return type ? type : "(no type)";
}

static int out_of_memory(struct loader *l)
{
    return error_set(l->err, -ENOMEM, "out of memory");
}

/* An id, or -1. */
static int32_t id_of(const cJSON *item)
{
    if (!cJSON_IsNumber(item)) return -1;
    double value = item->valuedouble;
    return value >= 0 && value < MAX_TOKENS && value == (double)(int32_t)value ? (int32_t)value : -1;
}

static int refuse_setting(struct loader *l, const cJSON *object, const char *where, const char *name)
{
    if (!is_set(get(object, name))) return 0;
    return error_set(l->err, -EINVAL, "%s: '%s' is set, which is not supported", where, name);
}

/* ---- tokens ---- */

static int grow_tokens(struct loader *l, int32_t id)
{
    uint32_t size = (uint32_t)id + 1;
    if (size <= l->t->size) return 0;
    struct token *grown = realloc(l->t->token, size * sizeof *grown);
    if (!grown) return out_of_memory(l);
    memset(grown + l->t->size, 0, (size - l->t->size) * sizeof *grown);
    l->t->token = grown;
    l->t->size = size;
    return 0;
}

static int set_token(struct loader *l, int32_t id, const char *text, bool added)
{
    struct token *token = &l->t->token[id];
    token->added = added;
    if (token->bytes) return 0; // an added token that the vocabulary has too
    token->bytes = malloc(strlen(text) + 1);
    if (!token->bytes) return out_of_memory(l);
    token->length = byte_level_decode(text, token->bytes);
    size_t shown = utf8_lossy((unsigned char *)token->bytes, token->length, NULL);
    if (shown > l->t->max_text) l->t->max_text = shown;
    return 0;
}

static int check_text(struct loader *l, const char *text, const char *where)
{
    size_t length = strlen(text), valid = utf8_valid_length((const unsigned char *)text, length);
    if (valid == length) return 0;
    return error_set(l->err, -EINVAL, "%s: a token is not UTF-8 at its byte %zu", where, valid);
}

static int read_vocabulary(struct loader *l, const cJSON *vocab)
{
    if (!cJSON_IsObject(vocab)) return error_set(l->err, -EINVAL, "model: no 'vocab' object");
    int32_t largest = -1;
    size_t count = 0;
    for (const cJSON *item = vocab->child; item; item = item->next, count++) {
        int32_t id = id_of(item);
        if (id < 0)
            return error_set(l->err, -EINVAL, "vocab: the id of '%.80s' is no integer from 0 to %d",
                             item->string, MAX_TOKENS - 1);
        if (id > largest) largest = id;
    }
    if (count == 0) return error_set(l->err, -EINVAL, "vocab: empty");
    int rc = grow_tokens(l, largest);
    if (rc) return rc;
    if (vocabulary_init(&l->vocabulary, count)) return out_of_memory(l);
    for (const cJSON *item = vocab->child; item; item = item->next) {
        int32_t id = id_of(item);
        if ((rc = check_text(l, item->string, "vocab"))) return rc;
        if (l->t->token[id].bytes)
            return error_set(l->err, -EINVAL, "vocab: id %d is given twice, the second time to '%.80s'", id,
                             item->string);
        if (vocabulary_add(&l->vocabulary, item->string, id))
            return error_set(l->err, -EINVAL, "vocab: '%.80s' is given twice", item->string);
        if ((rc = set_token(l, id, item->string, false))) return rc;
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        char spelling[BYTE_LEVEL_SPELLING];
        byte_level_spell((unsigned char)byte, spelling);
        l->t->bpe.byte_id[byte] = vocabulary_find(&l->vocabulary, spelling);
        if (l->t->bpe.byte_id[byte] < 0)
            return error_set(l->err, -EINVAL,
                             "vocab: no token '%s' for the byte 0x%02x, so this is no byte-level BPE",
                             spelling, byte);
    }
    return 0;
}

/* ---- merges ---- */

/* The halves of "a b" or ["a", "b"]; the first form is cut in place. */
static bool split_merge(cJSON *item, const char **left, const char **right)
{
    char *space = cJSON_IsString(item) ? strchr(item->valuestring, ' ') : NULL;
    if (space) {
        *space = '\0';
        *left = item->valuestring;
        *right = space + 1;
        return !strchr(*right, ' ');
    }
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2) return false;
    *left = cJSON_GetStringValue(item->child);
    *right = cJSON_GetStringValue(item->child->next);
    return *left && *right;
}

/* left and right in one string, which lasts until the next call; NULL: out of memory. */
static const char *join(struct loader *l, const char *left, const char *right)
{
    size_t n = strlen(left), m = strlen(right) + 1;
    if (n + m > l->joined_capacity) {
        char *grown = realloc(l->joined, 2 * (n + m));
        if (!grown) return NULL;
        l->joined = grown;
        l->joined_capacity = 2 * (n + m);
    }
    memcpy(l->joined, left, n);
    memcpy(l->joined + n, right, m);
    return l->joined;
}

static int read_merge(struct loader *l, cJSON *item, uint32_t rank)
{
    const char *part[3];
    if (!split_merge(item, &part[0], &part[1]))
        return error_set(l->err, -EINVAL, "merges: entry %u is neither \"a b\" nor [\"a\", \"b\"]", rank);
    if (!(part[2] = join(l, part[0], part[1]))) return out_of_memory(l);
    int32_t id[3];
    for (int i = 0; i < 3; i++) {
        id[i] = vocabulary_find(&l->vocabulary, part[i]);
        if (id[i] < 0)
            return error_set(l->err, -EINVAL, "merges: entry %u needs the token '%.80s', which vocab lacks",
                             rank, part[i]);
    }
    if (bpe_add(&l->t->bpe, id[0], id[1], id[2], rank))
        return error_set(l->err, -EINVAL, "merges: entry %u, '%.80s' and '%.80s', is given twice", rank,
                         part[0], part[1]);
    return 0;
}

static int read_model(struct loader *l, const cJSON *model)
{
    static const char *const refused[] = {
        "dropout",  "unk_token",    "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback",
        "fuse_unk", "ignore_merges"};
    if (!cJSON_IsObject(model)) return error_set(l->err, -EINVAL, "no 'model' object");
    const cJSON *type = get(model, "type"); // old files have none
    if (type && strcmp(type_of(model), "BPE") != 0)
        return error_set(l->err, -EINVAL, "model type '%.80s' is not supported; BPE is", type_of(model));
    int rc;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if ((rc = refuse_setting(l, model, "model", refused[i]))) return rc;
    if ((rc = read_vocabulary(l, get(model, "vocab")))) return rc;
    const cJSON *merges = get(model, "merges");
    if (!cJSON_IsArray(merges)) return error_set(l->err, -EINVAL, "model: no 'merges' array");
    if (bpe_init(&l->t->bpe, (size_t)cJSON_GetArraySize(merges))) return out_of_memory(l);
    uint32_t rank = 0;
    for (cJSON *item = merges->child; item; item = item->next)
        if ((rc = read_merge(l, item, rank++))) return rc;
    return 0;
}

/* ---- added tokens ---- */

static int read_added_token(struct loader *l, const cJSON *item)
{
    const char *text = cJSON_GetStringValue(get(item, "content"));
    int32_t id = id_of(get(item, "id"));
    if (!text || *text == '\0' || id < 0)
        return error_set(l->err, -EINVAL,
                         "added_tokens: an entry without content, or without an id from 0 to %d",
                         MAX_TOKENS - 1);
    int rc = check_text(l, text, "added_tokens");
    if (rc) return rc;
    static const char *const refused[] = {"single_word", "lstrip", "rstrip"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (is_set(get(item, refused[i])))
            return error_set(l->err, -EINVAL, "added token '%.80s': '%s' is set, which is not supported",
                             text, refused[i]);

    int32_t known = vocabulary_find(&l->vocabulary, text);
    if (known >= 0 && known != id)
        return error_set(l->err, -EINVAL, "added token '%.80s' has id %d, but %d in vocab", text, id, known);
    if ((rc = grow_tokens(l, id))) return rc;
    if (known < 0 && l->t->token[id].bytes)
        return error_set(l->err, -EINVAL, "added token '%.80s' has id %d, which is another token's", text,
                         id);
    if (l->t->token[id].added || tokenizer_added(l->t, text) >= 0)
        return error_set(l->err, -EINVAL, "added token '%.80s' with id %d is given twice", text, id);
    if ((rc = set_token(l, id, text, true))) return rc;

    struct added_set *set = &l->t->added[cJSON_IsTrue(get(item, "normalized"))];
    size_t length = strlen(text);
    char *copy = malloc(length + 1);
    if (!copy) return out_of_memory(l);
    memcpy(copy, text, length + 1);
    set->token[set->count++] = (struct added_token){copy, length, id};
    return 0;
}

static int read_added_tokens(struct loader *l, const cJSON *list)
{
    if (!is_set(list)) return 0;
    if (!cJSON_IsArray(list)) return error_set(l->err, -EINVAL, "'added_tokens' is no array");
    size_t count = (size_t)cJSON_GetArraySize(list);
    for (int i = 0; i < 2; i++) {
        l->t->added[i].token = malloc((count + 1) * sizeof *l->t->added[i].token);
        if (!l->t->added[i].token) return out_of_memory(l);
    }
    for (const cJSON *item = list->child; item; item = item->next) {
        int rc = read_added_token(l, item);
        if (rc) return rc;
    }
    for (int i = 0; i < 2; i++) added_set_sort(&l->t->added[i]);
    return 0;
}

/* ---- pipeline ---- */

static int read_split(struct loader *l, const cJSON *split)
{
    const cJSON *pattern = get(split, "pattern");
    const char *regex = cJSON_GetStringValue(get(pattern, "Regex")),
               *literal = cJSON_GetStringValue(get(pattern, "String"));
    const char *behavior = cJSON_GetStringValue(get(split, "behavior"));
    if (!regex == !literal)
        return error_set(l->err, -EINVAL, "pre_tokenizer: Split without a Regex or String pattern");
    bool removed = behavior && strcmp(behavior, "Removed") == 0, invert = cJSON_IsTrue(get(split, "invert"));
    if (!removed && (!behavior || strcmp(behavior, "Isolated") != 0))
        return error_set(l->err, -EINVAL,
                         "pre_tokenizer: Split behavior '%.80s' is not supported; Isolated and Removed are",
                         behavior ? behavior : "(none)");
    return pretokenizer_add(&l->t->pretokenizer, regex ? regex : literal, literal != NULL, removed && !invert,
                            removed && invert, l->err);
}

static int read_byte_level(struct loader *l, const cJSON *item)
{
    if (is_set(get(item, "add_prefix_space")))
        return error_set(l->err, -EINVAL, "pre_tokenizer: ByteLevel add_prefix_space is not supported");
    if (cJSON_IsFalse(get(item, "use_regex"))) return 0;
    return pretokenizer_add(&l->t->pretokenizer, BYTE_LEVEL_PATTERN, false, false, false, l->err);
}

static int read_pretokenizer(struct loader *l, const cJSON *item)
{
    // A lone one is a sequence of one.
    const cJSON *list = get(item, "pretokenizers");
    bool sequence = strcmp(type_of(item), "Sequence") == 0 && cJSON_IsArray(list);
    bool bytes = false;
    for (const cJSON *stage = sequence ? list->child : item; stage; stage = sequence ? stage->next : NULL) {
        const char *type = type_of(stage);
        int rc;
        if (bytes)
            return error_set(l->err, -EINVAL, "pre_tokenizer: '%.80s' after ByteLevel is not supported",
                             type);
        if (strcmp(type, "Split") == 0)
            rc = read_split(l, stage);
        else if (strcmp(type, "ByteLevel") == 0) {
            rc = read_byte_level(l, stage);
            bytes = true;
        } else
            return error_set(l->err, -EINVAL,
                             "pre_tokenizer type '%.80s' is not supported; Sequence, Split and ByteLevel are",
                             type);
        if (rc) return rc;
    }
    return bytes ? 0
                 : error_set(l->err, -EINVAL,
                             "pre_tokenizer: no ByteLevel at its end, so this is no byte-level BPE");
}

static int check_normalizer(struct loader *l, const cJSON *item)
{
    if (!is_set(item)) return 0;
    const cJSON *list = get(item, "normalizers");
    if (strcmp(type_of(item), "Sequence") != 0)
        return error_set(l->err, -EINVAL, "normalizer '%.80s' is not supported; none is", type_of(item));
    if (cJSON_IsArray(list) && list->child)
        return error_set(l->err, -EINVAL, "normalizer '%.80s' is not supported; none is",
                         type_of(list->child));
    return 0;
}

static int check_decoder(struct loader *l, const cJSON *item)
{
    const cJSON *list = get(item, "decoders");
    if (strcmp(type_of(item), "Sequence") == 0 && cJSON_IsArray(list) && cJSON_GetArraySize(list) == 1)
        item = list->child;
    if (strcmp(type_of(item), "ByteLevel") == 0) return 0;
    return error_set(l->err, -EINVAL, "decoder '%.80s' is not supported; ByteLevel is", type_of(item));
}

static int read_root(struct loader *l, const cJSON *root)
{
    if (!cJSON_IsObject(root)) return error_set(l->err, -EINVAL, "not a JSON object");
    int rc;
    if ((rc = refuse_setting(l, root, "tokenizer", "truncation"))) return rc;
    if ((rc = refuse_setting(l, root, "tokenizer", "padding"))) return rc;
    if ((rc = check_normalizer(l, get(root, "normalizer")))) return rc;
    if ((rc = read_pretokenizer(l, get(root, "pre_tokenizer")))) return rc;
    if ((rc = check_decoder(l, get(root, "decoder")))) return rc;
    if ((rc = read_model(l, get(root, "model")))) return rc;
    return read_added_tokens(l, get(root, "added_tokens"));
}

/* cJSON's strings end at the first NUL, so an escaped one would silently cut a token short. */
static bool has_escaped_nul(const char *text)
{
    for (const char *at = text; (at = strchr(at, '\\')) && at[1]; at += 2)
        if (strncmp(at + 1, "u0000", 5) == 0) return true;
    return false;
}

/* Names and patterns from the file stand in messages; the message stays one line whatever they hold. */
static void keep_one_line(struct error *err)
{
    if (!err) return;
    for (char *c = err->text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
}

int tokenizer__load(struct tokenizer *t, const char *text, size_t length, struct error *err)
{
    if (strlen(text) != length) return error_set(err, -EINVAL, "not JSON: a NUL at byte %zu", strlen(text));
    if (has_escaped_nul(text)) return error_set(err, -EINVAL, "\\u0000 in a string is not supported");
    const char *end = NULL;
    cJSON *root = cJSON_ParseWithLengthOpts(text, length + 1, &end, true);
    if (!root && json_stopped_too_deep(text, end, CJSON_NESTING_LIMIT))
        return error_set(err, -EINVAL, "nested deeper than %d at byte %zu of %zu", CJSON_NESTING_LIMIT,
                         (size_t)(end - text), length);
    if (!root)
        return error_set(err, -EINVAL, "not JSON, at byte %zu of %zu", end ? (size_t)(end - text) : 0,
                         length);
    struct loader l = {.t = t, .err = err};
    int rc = read_root(&l, root);
    vocabulary_free(&l.vocabulary);
    free(l.joined);
    if (rc) keep_one_line(err);
    cJSON_Delete(root);
    return rc;
}
