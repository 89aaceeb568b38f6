/* safetensors_test.c: file images that must be refused, each with the file, the tensor and both values. */
#include "tests/model/expect.h"

#include "host/model/checkpoint.h"

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define T(dtype, shape, offsets)                                                                             \
    "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const struct image {
    const char *name, *header;
    size_t data;             // bytes behind the header
    const char *expected[5]; // none: accepted
} images[] = {
    {"plain", "{" A "}", 24, {0}},
    {"metadata", "{\"__metadata__\":{\"format\":\"pt\"}," A "}", 24, {0}},
    {"padded with spaces", "{" A "}      ", 24, {0}},
    {"gap and tail", "{" A ",\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[28,32]}}", 40, {0}},
    {"scalar", T("F32", "[]", "[0,4]"), 4, {0}},
    {"empty tensor", T("F32", "[0,7]", "[0,0]"), 0, {0}},
    {"empty tensor inside another",
     "{" A ",\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[8,8]}}",
     24,
     {0}},
    {"no tensors", "{}", 0, {0}},
    {"unaligned",
     "{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"F32\","
     "\"shape\":[1],\"data_offsets\":[1,5]}}",
     5,
     {0}},

    {"truncated data",
     "{" A "}",
     20,
     {"x.safetensors", "tensor a", "ends at byte 89", "file ends at byte 85"}},
    {"offsets out of range",
     T("U8", "[1]", "[1000,1001]"),
     4,
     {"tensor a", "ends at byte 1068", "at byte 71"}},
    {"offsets reversed", T("U8", "[1]", "[4,3]"), 4, {"tensor a", "begin at 4", "at 3"}},
    {"offsets negative", T("U8", "[1]", "[-1,0]"), 4, {"tensor a", "data_offsets"}},
    {"offsets not integers", T("U8", "[1]", "[0,1.5]"), 4, {"tensor a", "data_offsets"}},
    {"offsets beyond 2^53", T("U8", "[1]", "[0,18446744073709551616]"), 4, {"tensor a", "data_offsets"}},
    {"one offset", T("U8", "[1]", "[0]"), 4, {"tensor a", "data_offsets"}},
    {"three offsets", T("U8", "[1]", "[0,1,2]"), 4, {"tensor a", "data_offsets"}},
    {"offsets missing", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 4, {"tensor a", "data_offsets"}},
    {"overlap",
     "{" A ",\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[20,24]}}",
     24,
     {"x.safetensors", "tensor b overlaps a", "begins at byte 139", "ends at byte 143"}},
    {"overlap across an empty one",
     "{" A ",\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[8,8]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[20,24]}}",
     24,
     {"tensor b overlaps a"}},
    {"span does not fit shape",
     T("BF16", "[2,3]", "[0,24]"),
     24,
     {"tensor a", "BF16 make 12 bytes", "span 24"}},
    {"shape overflows",
     T("F32", "[4294967296,4294967296]", "[0,24]"),
     24,
     {"tensor a", "2^64", "4294967296"}},
    {"dimension negative", T("U8", "[-4]", "[0,4]"), 4, {"tensor a", "dimension 0", "-4"}},
    {"dimension fractional", T("U8", "[4,0.5]", "[0,2]"), 4, {"tensor a", "dimension 1", "0.5"}},
    {"dimension a string", T("U8", "[\"4\"]", "[0,4]"), 4, {"tensor a", "dimension 0", "\"4\""}},
    {"too many dimensions",
     T("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"),
     4,
     {"tensor a", "more than 8 dimensions"}},
    {"shape not an array", T("U8", "4", "[0,4]"), 4, {"tensor a", "shape is 4"}},
    {"shape missing",
     "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}",
     4,
     {"tensor a", "shape is missing"}},
    {"unknown dtype", T("F3", "[4]", "[0,4]"), 4, {"x.safetensors", "tensor a", "\"F3\""}},
    {"dtype missing", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 4, {"tensor a", "dtype is missing"}},
    {"dtype a number",
     "{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,1]}}",
     4,
     {"tensor a", "dtype is 3"}},
    {"tensor not an object", "{\"a\":7}", 4, {"tensor a", "7", "must be an object"}},
    {"same name twice", "{" A "," A "}", 24, {"x.safetensors", "\"a\"", "twice"}},
    {"same key twice",
     "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,4]}}",
     4,
     {"\"dtype\"", "twice"}},
    {"name with a newline",
     "{\"a\\nb\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
     4,
     {"\"a?b\"", "printable"}},
    {"name empty",
     "{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
     4,
     {"\"\"", "printable"}},
    {"header an array", "[]", 0, {"header is an array"}},
    {"header cut", "{\"a\":{\"dtype\":", 0, {"x.safetensors", "not valid JSON", "of 14"}},
    {"header empty", "", 0, {"not valid JSON", "of 0"}},
    {"rubbish behind the header", "{" A "} x", 24, {"JSON value ends", "1 bytes follow"}},
    {"nested too deep", "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", 0, {"nested 33 deep", "allowed: 32"}},
};

static void check_image(void **state)
{
    const struct image *c = *state;
    uint64_t n = strlen(c->header);
    size_t bytes = 8 + n + c->data;
    uint8_t *image = calloc(1, bytes);
    memcpy(image, &n, 8);
    memcpy(image + 8, c->header, n);
    struct error err = {""};
    int rc = safetensors_check(image, bytes, "x.safetensors", &err);
    free(image);
    if (c->expected[0])
        expect_refusal(rc, &err, c->expected);
    else if (rc)
        fail_msg("refused: %s", err.text);
}

static const struct raw {
    const char *name, *bytes;
    size_t count;
    const char *expected[5];
} raws[] = {
    {"zero bytes", "", 0, {"x.safetensors", "0 bytes", "at least 8"}},
    {"seven bytes", "\1\0\0\0\0\0\0", 7, {"7 bytes", "at least 8"}},
    {"header longer than file", "\100\0\0\0\0\0\0\0{}", 10, {"header needs 72 bytes", "file has 10"}},
    {"header length absurd",
     "\377\377\377\377\377\377\377\377{}",
     10,
     {"18446744073709551615", "allowed: 100000000"}},
    {"header length at 2^63", "\0\0\0\0\0\0\0\200{}", 10, {"9223372036854775808", "allowed: 100000000"}},
    {"NUL in the header", "\4\0\0\0\0\0\0\0{}\0\0", 12, {"x.safetensors", "NUL byte", "byte 2"}},
    {"a zip file", "PK\3\4\24\0\0\0\10\0\0\0", 12, {"not a safetensors file"}},
};

static void check_raw(void **state)
{
    const struct raw *c = *state;
    uint8_t *image = malloc(c->count + 1); // malloc: a read beyond the end is seen by the sanitizer
    memcpy(image, c->bytes, c->count);
    image = realloc(image, c->count ? c->count : 1);
    struct error err = {""};
    int rc = safetensors_check(image, c->count, "x.safetensors", &err);
    free(image);
    expect_refusal(rc, &err, c->expected);
}

int main(void)
{
    struct CMUnitTest tests[sizeof images / sizeof *images + sizeof raws / sizeof *raws];
    size_t n = 0;
    for (size_t i = 0; i < sizeof images / sizeof *images; i++)
        tests[n++] =
            (struct CMUnitTest){images[i].name, check_image, NULL, NULL, (void *)(uintptr_t)&images[i]};
    for (size_t i = 0; i < sizeof raws / sizeof *raws; i++)
        tests[n++] = (struct CMUnitTest){raws[i].name, check_raw, NULL, NULL, (void *)(uintptr_t)&raws[i]};
    return _cmocka_run_group_tests("model-safetensors", tests, n, NULL, NULL);
}
