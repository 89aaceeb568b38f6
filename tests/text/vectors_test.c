/* vectors_test.c: ids and text equal to the original tokenizer's, from a file of vectors.
 * Arguments: "duckling" or "deepseek". */
#include <stdlib.h>
#include <string.h>

#include "tests/text/text_support.h"

static const char *vectors_path, *tokenizer_path;

static void texts_give_the_vectors_ids(void **state)
{
    (void)state;
    struct tokenizer *t = open_tokenizer(tokenizer_path);
    cJSON *root = read_json(vectors_path);
    const cJSON *vector;
    size_t seen = 0;
    cJSON_ArrayForEach(vector, cJSON_GetObjectItem(root, "vectors"))
    {
        size_t length;
        const char *text = text_of(cJSON_GetObjectItem(vector, "text"), &length);
        struct ids ids = {0};
        struct error err = {0};
        if (tokenizer_encode(t, text, length, true, &ids, &err)) fail_msg("'%s': %s", text, err.text);
        assert_ids(&ids, cJSON_GetObjectItem(vector, "ids"), text);
        ids_free(&ids);
        seen++;
    }
    assert_int_equal(seen, 76);
    cJSON_Delete(root);
    tokenizer_close(t);
}

static void ids_give_the_vectors_texts(void **state)
{
    (void)state;
    struct tokenizer *t = open_tokenizer(tokenizer_path);
    cJSON *root = read_json(vectors_path);
    const cJSON *vector;
    cJSON_ArrayForEach(vector, cJSON_GetObjectItem(root, "vectors"))
    {
        const cJSON *list = cJSON_GetObjectItem(vector, "ids"), *item;
        struct ids ids = {0};
        cJSON_ArrayForEach(item, list) assert_int_equal(ids_push(&ids, item->valueint), 0);
        size_t got, length;
        char *text = decode(t, ids.id, ids.count, true, &got);
        const char *expected = text_of(cJSON_GetObjectItem(vector, "decoded"), &length);
        assert_int_equal(got, length);
        assert_memory_equal(text, expected, length);
        free(text);
        ids_free(&ids);
    }
    cJSON_Delete(root);
    tokenizer_close(t);
}

int main(int argc, char **argv)
{
    bool deepseek = argc > 1 && strcmp(argv[1], "deepseek") == 0;
    vectors_path = deepseek ? SOURCE_DIR "/tests/goldens/deepseek-v3-tokenizer/vectors.json"
                            : SOURCE_DIR "/tests/goldens/duckling/tokenizer_vectors.json";
    tokenizer_path = deepseek ? DEEPSEEK_TOKENIZER : SOURCE_DIR "/models/duckling";
    if (deepseek) skip_without(tokenizer_path);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_give_the_vectors_ids),
        cmocka_unit_test(ids_give_the_vectors_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
