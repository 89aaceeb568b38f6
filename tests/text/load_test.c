/* load_test.c: tokenizer files that are refused, each with a line that names why. Every case changes one
 * thing in duckling's file. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/text/text_support.h"

#define LONGEST_PATH 4
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define SPLIT(pattern, behavior)                                                                             \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":" pattern                     \
    ",\"behavior\":\"" behavior "\",\"invert\":false}," BYTE_LEVEL "]}"
#define REGEX(text) "{\"Regex\":\"" text "\"}"
#define ADDED(fields) "{\"id\":6400,\"content\":\"<new>\"," fields "}"

struct load_case {
    const char *name;
    const char *path[LONGEST_PATH]; // of the value to change; "0": an array's first element
    const char *value;              // NULL: left out
    const char *error;              // part of the line; NULL: accepted
};

static const struct load_case cases[] = {
    {"unchanged", {"version"}, "\"1.0\"", NULL},
    {"truncation", {"truncation"}, "{\"max_length\":5}", "'truncation'"},
    {"padding", {"padding"}, "{}", "'padding'"},
    {"a normalizer", {"normalizer"}, "{\"type\":\"NFC\"}", "normalizer 'NFC'"},
    {"a normalizer in a sequence",
     {"normalizer", "normalizers"},
     "[{\"type\":\"Lowercase\"}]",
     "'Lowercase'"},
    {"no normalizer", {"normalizer"}, "null", NULL},
    {"a name of several lines", {"decoder"}, "{\"type\":\"Word\\nPiece\"}", "decoder 'Word?Piece'"},
    {"no pre-tokenizer", {"pre_tokenizer"}, "null", "pre_tokenizer type '(no type)'"},
    {"another pre-tokenizer", {"pre_tokenizer"}, "{\"type\":\"Metaspace\"}", "'Metaspace'"},
    {"only ByteLevel", {"pre_tokenizer"}, BYTE_LEVEL, NULL},
    {"a prefix space",
     {"pre_tokenizer"},
     "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}",
     "add_prefix_space"},
    {"ByteLevel missing", {"pre_tokenizer", "pretokenizers"}, "[]", "no ByteLevel"},
    {"ByteLevel not last",
     {"pre_tokenizer", "pretokenizers"},
     "[" BYTE_LEVEL "," BYTE_LEVEL "]",
     "after ByteLevel"},
    {"a behavior", {"pre_tokenizer"}, SPLIT(REGEX("a"), "Contiguous"), "'Contiguous'"},
    {"no pattern", {"pre_tokenizer"}, SPLIT("{}", "Isolated"), "without a Regex or String"},
    {"an empty pattern", {"pre_tokenizer"}, SPLIT("{\"String\":\"\"}", "Isolated"), "empty pattern"},
    {"a broken expression", {"pre_tokenizer"}, SPLIT(REGEX("(a"), "Isolated"), "missing closing parenthesis"},
    {"an expression we do not translate",
     {"pre_tokenizer"},
     SPLIT(REGEX("a\\\\b"), "Isolated"),
     "this escape"},
    {"another decoder", {"decoder"}, "{\"type\":\"WordPiece\"}", "decoder 'WordPiece'"},
    {"no decoder", {"decoder"}, "null", "decoder"},
    {"another model", {"model", "type"}, "\"Unigram\"", "model type 'Unigram'"},
    {"dropout", {"model", "dropout"}, "0.1", "'dropout'"},
    {"an unknown token", {"model", "unk_token"}, "\"<unk>\"", "'unk_token'"},
    {"byte fallback", {"model", "byte_fallback"}, "true", "'byte_fallback'"},
    {"a subword prefix", {"model", "continuing_subword_prefix"}, "\"##\"", "'continuing_subword_prefix'"},
    {"a word suffix", {"model", "end_of_word_suffix"}, "\"</w>\"", "'end_of_word_suffix'"},
    {"ignored merges", {"model", "ignore_merges"}, "true", "'ignore_merges'"},
    {"no vocabulary", {"model", "vocab"}, "[]", "no 'vocab'"},
    {"a vocabulary without bytes", {"model", "vocab"}, "{\"a\":1}", "no token 'Ā' for the byte 0x00"},
    {"an empty vocabulary", {"model", "vocab"}, "{}", "vocab: empty"},
    {"an id that is no integer", {"model", "vocab", "he"}, "1.5", "the id of 'he'"},
    {"a negative id", {"model", "vocab", "he"}, "-3", "the id of 'he'"},
    {"an absurd id", {"model", "vocab", "he"}, "1e9", "the id of 'he'"},
    {"an id given twice", {"model", "vocab", "he"}, "67", "id 67 is given twice"},
    {"no merges", {"model", "merges"}, NULL, "no 'merges'"},
    {"merges as pairs", {"model", "merges", "0"}, "[\"Ġ\",\"Ġ\"]", NULL},
    {"a merge of three", {"model", "merges", "0"}, "\"a b c\"", "entry 0 is neither"},
    {"a merge that is no text", {"model", "merges", "0"}, "7", "entry 0 is neither"},
    {"a merge into nothing known", {"model", "merges", "0"}, "\"a zzqzz\"", "which vocab lacks"},
    {"a merge given twice", {"model", "merges", "0"}, "\"Ġ a\"", "is given twice"},
    {"an added token", {"added_tokens", "0"}, ADDED("\"special\":true"), NULL},
    {"strip left", {"added_tokens", "0"}, ADDED("\"lstrip\":true"), "'lstrip'"},
    {"strip right", {"added_tokens", "0"}, ADDED("\"rstrip\":true"), "'rstrip'"},
    {"single word", {"added_tokens", "0"}, ADDED("\"single_word\":true"), "'single_word'"},
    {"added without text", {"added_tokens", "0", "content"}, "\"\"", "without content"},
    {"added without id", {"added_tokens", "0", "id"}, "null", "without content, or without an id"},
    {"added with another's id", {"added_tokens", "0"}, "{\"id\":67,\"content\":\"<x>\"}", "another token's"},
    {"added with another id than in vocab", {"added_tokens", "0", "id"}, "6400", "but 0 in vocab"},
    {"added twice", {"added_tokens", "0"}, "{\"id\":6400,\"content\":\"<think>\"}", "is given twice"},
};

static cJSON *child_of(cJSON *parent, const char *name)
{
    return strcmp(name, "0") == 0 ? cJSON_GetArrayItem(parent, 0)
                                  : cJSON_GetObjectItemCaseSensitive(parent, name);
}

static void change(cJSON *root, const struct load_case *c)
{
    cJSON *parent = root;
    int depth = 0;
    while (depth + 1 < LONGEST_PATH && c->path[depth + 1]) {
        parent = child_of(parent, c->path[depth++]);
        assert_non_null(parent);
    }
    const char *last = c->path[depth];
    cJSON *value = c->value ? cJSON_Parse(c->value) : NULL;
    if (c->value) assert_non_null(value);
    if (!value)
        cJSON_DeleteItemFromObjectCaseSensitive(parent, last);
    else if (strcmp(last, "0") == 0)
        assert_true(cJSON_ReplaceItemInArray(parent, 0, value));
    else if (child_of(parent, last))
        assert_true(cJSON_ReplaceItemInObjectCaseSensitive(parent, last, value));
    else
        assert_true(cJSON_AddItemToObject(parent, last, value));
}

/* Writes text to a new file and opens it as a tokenizer; the message of a refusal in err. */
static int open_text(const char *text, struct error *err)
{
    char path[] = "/tmp/duckd-load-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    struct tokenizer *t = NULL;
    int rc = tokenizer_open(&t, path, err);
    unlink(path);
    assert_true(rc == 0 ? t != NULL : t == NULL);
    if (rc) assert_non_null(strstr(err->text, path)); // the line says which file
    tokenizer_close(t);
    return rc;
}

static void a_changed_file_is_refused_or_means_what_it_says(void **state)
{
    (void)state;
    cJSON *original = read_json(SOURCE_DIR "/models/duckling/tokenizer.json");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct load_case *c = &cases[i];
        cJSON *changed = cJSON_Duplicate(original, true);
        change(changed, c);
        char *text = cJSON_PrintUnformatted(changed);
        struct error err = {0};
        int rc = open_text(text, &err);
        if (!c->error && rc) fail_msg("%s: refused: %s", c->name, err.text);
        if (c->error && !rc) fail_msg("%s: accepted", c->name);
        if (c->error && !strstr(err.text, c->error))
            fail_msg("%s: '%s' lacks '%s'", c->name, err.text, c->error);
        free(text);
        cJSON_Delete(changed);
    }
    cJSON_Delete(original);
}

static void what_is_no_json_is_refused(void **state)
{
    (void)state;
    static char deep[1010] = "\n";
    memset(deep + 1, '[', 1001);
    static const struct {
        const char *name, *text, *error;
    } files[] = {
        {"empty", "", "not JSON"},
        {"too deep", deep, "nested deeper than 1000 at byte 1001 of 1002"},
        {"cut", "{\"model\": {", "not JSON"},
        {"something behind", "{} x", "not JSON"},
        {"an array", "[]", "not a JSON object"},
        {"an escaped NUL", "{\"a\": \"\\u0000\"}", "u0000"},
        {"no escaped NUL", "{\"a\": \"\\\\u0000\"}", "pre_tokenizer"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct error err = {0};
        assert_true(open_text(files[i].text, &err) < 0);
        if (!strstr(err.text, files[i].error)) fail_msg("%s: %s", files[i].name, err.text);
    }
}

static void a_missing_file_is_named(void **state)
{
    (void)state;
    struct tokenizer *t;
    struct error err = {0};
    assert_int_equal(tokenizer_open(&t, "/nonexistent/place", &err), -ENOENT);
    assert_string_equal(err.text, "/nonexistent/place: No such file or directory");
    assert_int_equal(tokenizer_open(&t, SOURCE_DIR "/host", &err), -ENOENT);
    assert_non_null(strstr(err.text, "host/tokenizer.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_changed_file_is_refused_or_means_what_it_says),
        cmocka_unit_test(what_is_no_json_is_refused),
        cmocka_unit_test(a_missing_file_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
