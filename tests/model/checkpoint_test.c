/* checkpoint_test.c: directories and tensors that must be refused, each with file, tensor and both values.
 *
 * Every case gets a directory of its own with the files it lists. */
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/model/expect.h"

#include "host/model/model.h"
#include "tests/model/scratch.h"

static void new_dir(char dir[128])
{
    static int number;
    snprintf(dir, 128, "%s/case-%03d", scratch_root, number++);
    assert_int_equal(mkdir(dir, 0700), 0);
}

static void write_file(const char *dir, const char *file, const void *bytes, size_t count)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    fclose(f);
}

static void write_safetensors(const char *dir, const char *file, const char *header, const void *data,
                              size_t bytes)
{
    uint64_t n = strlen(header);
    uint8_t *image = calloc(1, 8 + n + bytes);
    memcpy(image, &n, 8);
    memcpy(image + 8, header, n);
    if (data) memcpy(image + 8 + n, data, bytes);
    write_file(dir, file, image, 8 + n + bytes);
    free(image);
}

/* ---- directories ---- */

#define U8(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"
#define INDEX "model.safetensors.index.json"
#define MAP(entries) "{\"weight_map\":{" entries "}}"

static const struct layout {
    const char *name;
    struct {
        const char *file, *text; // *.safetensors: text is the header, data follows
        size_t data;
    } files[3];
    const char *expected[EXPECT_PARTS]; // none: accepted
} layouts[] = {
    {"single", {{"model.safetensors", U8("a"), 4}}, {0}},
    {"two shards",
     {{INDEX, MAP("\"a\":\"1.safetensors\",\"b\":\"2.safetensors\""), 0},
      {"1.safetensors", U8("a"), 4},
      {"2.safetensors", U8("b"), 4}},
     {0}},
    {"tensor beside the index",
     {{INDEX, MAP("\"b\":\"2.safetensors\""), 0},
      {"2.safetensors",
       "{\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"c\":{\"dtype\":\"U8\",\"shape\":[0],"
       "\"data_offsets\":[0,0]}}",
       4}},
     {0}},
    {"empty directory",
     {{"README", "", 0}},
     {"case-", "neither model.safetensors.index.json nor model.safetensors"}},
    {"file of zero bytes",
     {{"model.safetensors.index.json", MAP("\"a\":\"1.safetensors\""), 0}, {"1.safetensors", NULL, 0}},
     {"1.safetensors", "0 bytes", "at least 8"}},
    {"truncated shard",
     {{INDEX, MAP("\"a\":\"1.safetensors\""), 0}, {"1.safetensors", U8("a"), 3}},
     {"1.safetensors", "tensor a", "byte 65", "byte 64"}},
    {"shard missing",
     {{INDEX, MAP("\"a\":\"1.safetensors\""), 0}},
     {"1.safetensors", "cannot open shard", "No such file"}},
    {"tensor missing in its shard",
     {{INDEX, MAP("\"a\":\"1.safetensors\",\"b\":\"1.safetensors\""), 0}, {"1.safetensors", U8("a"), 4}},
     {"1.safetensors", "tensor b is missing", INDEX}},
    {"tensor in another shard",
     {{INDEX, MAP("\"a\":\"2.safetensors\",\"b\":\"1.safetensors\""), 0},
      {"1.safetensors",
       "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[0],"
       "\"data_offsets\":[0,0]}}",
       4},
      {"2.safetensors", U8("c"), 4}},
     {"2.safetensors", "tensor a is missing", "it is in 1.safetensors"}},
    {"tensor in two shards",
     {{INDEX, MAP("\"a\":\"1.safetensors\",\"b\":\"2.safetensors\""), 0},
      {"1.safetensors", U8("a"), 4},
      {"2.safetensors",
       "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[0],"
       "\"data_offsets\":[0,0]}}",
       4}},
     {"tensor a", "1.safetensors", "2.safetensors", "also in"}},
    {"shard above",
     {{INDEX, MAP("\"a\":\"../1.safetensors\""), 0}},
     {INDEX, "tensor a", "\"../1.safetensors\"", "same directory"}},
    {"shard absolute",
     {{INDEX, MAP("\"a\":\"/etc/passwd\""), 0}},
     {INDEX, "tensor a", "\"/etc/passwd\"", "same directory"}},
    {"shard in a folder",
     {{INDEX, MAP("\"a\":\"x/1.safetensors\""), 0}},
     {"tensor a", "\"x/1.safetensors\""}},
    {"shard ..", {{INDEX, MAP("\"a\":\"..\""), 0}}, {"tensor a", "\"..\""}},
    {"shard nameless", {{INDEX, MAP("\"a\":\"\""), 0}}, {"tensor a", "\"\""}},
    {"shard a number", {{INDEX, MAP("\"a\":1"), 0}}, {"tensor a", "shard is 1"}},
    {"no weight map", {{INDEX, "{\"metadata\":{}}", 0}}, {INDEX, "weight_map is missing"}},
    {"weight map empty", {{INDEX, MAP(""), 0}}, {INDEX, "weight_map is empty"}},
    {"weight map a list", {{INDEX, "{\"weight_map\":[\"a\"]}", 0}}, {INDEX, "weight_map is an array"}},
    {"index a list", {{INDEX, "[]", 0}}, {INDEX, "weight_map is missing"}},
    {"index not JSON", {{INDEX, "{\"weight_map\":{", 0}}, {INDEX, "not valid JSON", "of 15"}},
    {"tensor twice in the index",
     {{INDEX, MAP("\"a\":\"1.safetensors\",\"a\":\"2.safetensors\""), 0}},
     {INDEX, "\"a\"", "twice"}},
};

static void check_layout(void **state)
{
    const struct layout *l = *state;
    char dir[128];
    new_dir(dir);
    for (size_t i = 0; i < 3 && l->files[i].file; i++) {
        const char *file = l->files[i].file, *text = l->files[i].text;
        size_t n = strlen(file);
        if (text && n > 12 && strcmp(file + n - 12, ".safetensors") == 0)
            write_safetensors(dir, file, text, NULL, l->files[i].data);
        else
            write_file(dir, file, text ? text : "", text ? strlen(text) : 0);
    }
    struct checkpoint *c;
    struct error err = {""};
    int rc = checkpoint_open(&c, dir, &err);
    if (l->expected[0]) {
        assert_null(c);
        expect_refusal(rc, &err, l->expected);
    } else if (rc) {
        fail_msg("%s", err.text);
    }
    checkpoint_close(c);
}

static void files_are_no_plain_files(void **state)
{
    (void)state;
    char dir[128], path[256];
    new_dir(dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    struct checkpoint *c;
    struct error err = {""};
    const char *const shard[EXPECT_PARTS] = {"model.safetensors", "not a regular file"};
    expect_refusal(checkpoint_open(&c, dir, &err), &err, shard);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_refusal(checkpoint_open(&c, dir, &err), &err, shard);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_refusal(checkpoint_open(&c, dir, &err), &err,
                   (const char *const[EXPECT_PARTS]){"index.json", "not a regular file"});
}

/* The cache of published models keeps blobs elsewhere and links them. */
static void shard_is_a_symlink(void **state)
{
    (void)state;
    char blobs[128], dir[128], from[256], to[256];
    new_dir(blobs);
    new_dir(dir);
    write_safetensors(blobs, "0123abcd", U8("a"), "wxyz", 4);
    snprintf(to, sizeof to, "%s/0123abcd", blobs);
    snprintf(from, sizeof from, "%s/model.safetensors", dir);
    assert_int_equal(symlink(to, from), 0);
    struct checkpoint *c;
    struct error err = {""};
    if (checkpoint_open(&c, dir, &err)) fail_msg("%s", err.text);
    assert_memory_equal(checkpoint_find(c, "a")->data, "wxyz", 4);
    checkpoint_close(c);
    assert_int_equal(remove(to), 0);
    expect_refusal(checkpoint_open(&c, dir, &err), &err,
                   (const char *const[EXPECT_PARTS]){"model.safetensors", "cannot open", "No such file"});
}

/* ---- tensors ---- */

/* One file with a tensor of every kind; data is four fp8 scales' worth of 1.0 first, then zeros. */
#define E(name, dtype, shape, from, to)                                                                      \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"
static const char zoo[] = "{" E("one", "F32", "[4]", "0", "16") "," E("fp8.weight", "F8_E4M3", "[2,130]", "16", "276") "," E("fp8.weight_scale_inv", "F32", "[1,2]", "276", "284") "," E(
    "bare.weight", "F8_E4M3",
    "[2,3]", "284",
    "290") "," E("badscale.weight", "F8_E4M3", "[2,130]", "290",
                 "550") "," E("badscale.weight_scale_inv", "F32", "[2,1]", "550",
                              "558") "," E("bf16scale.weight", "F8_E4M3", "[2,3]", "558",
                                           "564") "," E("bf16scale.weight_scale_inv", "BF16", "[1,1]", "564",
                                                        "566") "," E("zeroscale.weight", "F8_E4M3", "[2,3]",
                                                                     "566",
                                                                     "572") "," E("zeroscale.weight_scale_"
                                                                                  "inv",
                                                                                  "F32", "[1,1]", "572",
                                                                                  "576") "," E("bf16", "BF16",
                                                                                               "[2,3]",
                                                                                               "576",
                                                                                               "588") "," E("f16",
                                                                                                            "F16",
                                                                                                            "[3]",
                                                                                                            "588",
                                                                                                            "594") "," E("f64",
                                                                                                                         "F64",
                                                                                                                         "[3]",
                                                                                                                         "600",
                                                                                                                         "624") "," E("e5m2",
                                                                                                                                      "F8_E5M2",
                                                                                                                                      "[2,3]",
                                                                                                                                      "624",
                                                                                                                                      "630") "," E("f32",
                                                                                                                                                   "F32",
                                                                                                                                                   "[2,2]",
                                                                                                                                                   "632",
                                                                                                                                                   "648") "," E("half",
                                                                                                                                                                "F16",
                                                                                                                                                                "[2,3]",
                                                                                                                                                                "648",
                                                                                                                                                                "660") "}";

static struct checkpoint *open_zoo(void)
{
    uint8_t data[660] = {0};
    const float ones[4] = {1, 2, -3, 0.5f}, scales[2] = {0.5f, 4.0f}, f32[4] = {1, 2, 3, 4};
    memcpy(data, ones, 16);
    for (int i = 0; i < 260; i++) data[16 + i] = (uint8_t)(i % 0x7f); // no NaN
    data[16 + 130] = 0xff;                                            // but one, in row 1
    memcpy(data + 276, scales, 8);
    const uint16_t bf16[6] = {0x3f80, 0xc000, 0x0001, 0x7f80, 0, 0x8000}, f16[3] = {0x3c00, 0x8001, 0xfbff};
    memcpy(data + 576, bf16, 12);
    memcpy(data + 588, f16, 6);
    memcpy(data + 632, f32, 16);
    char dir[128];
    new_dir(dir);
    write_safetensors(dir, "model.safetensors", zoo, data, sizeof data);
    struct checkpoint *c;
    struct error err = {""};
    if (checkpoint_open(&c, dir, &err)) fail_msg("%s", err.text);
    return c;
}

static const struct request {
    const char *name;
    bool vector;
    const char *tensor;
    uint64_t rows, cols;
    const char *expected[EXPECT_PARTS];
} requests[] = {
    {"matrix missing",
     false,
     "model.nope.weight",
     2,
     3,
     {"case-", "tensor model.nope.weight is missing", "16 tensors"}},
    {"matrix rows", false, "bf16", 4, 3, {"model.safetensors", "tensor bf16", "(2, 3)", "(4, 3)"}},
    {"matrix cols", false, "bf16", 2, 4, {"model.safetensors", "tensor bf16", "(2, 3)", "(2, 4)"}},
    {"matrix from a vector", false, "one", 4, 1, {"tensor one", "(4)", "(4, 1)"}},
    {"matrix of half floats",
     false,
     "half",
     2,
     3,
     {"model.safetensors", "tensor half", "F16", "F8_E4M3, BF16 or F32"}},
    {"matrix of e5m2", false, "e5m2", 2, 3, {"tensor e5m2", "F8_E5M2"}},
    {"scales missing",
     false,
     "bare.weight",
     2,
     3,
     {"model.safetensors", "tensor bare.weight", "bare.weight_scale_inv", "missing"}},
    {"scales of another shape",
     false,
     "badscale.weight",
     2,
     130,
     {"tensor badscale.weight_scale_inv", "(2, 1)", "(1, 2)"}},
    {"scales of another dtype",
     false,
     "bf16scale.weight",
     2,
     3,
     {"tensor bf16scale.weight_scale_inv", "BF16", "F32"}},
    {"scale zero",
     false,
     "zeroscale.weight",
     2,
     3,
     {"tensor zeroscale.weight_scale_inv", "scale (0, 0) is 0", "positive"}},
    {"vector missing", true, "model.norm.weight", 3, 0, {"tensor model.norm.weight is missing"}},
    {"vector length", true, "one", 5, 0, {"model.safetensors", "tensor one", "(4)", "(5)"}},
    {"vector from a matrix", true, "bf16", 6, 0, {"tensor bf16", "(2, 3)", "(6)"}},
    {"vector dtype", true, "f64", 3, 0, {"tensor f64", "F64", "F32, BF16 or F16"}},
};

static void check_request(void **state)
{
    const struct request *r = *state;
    struct checkpoint *c = open_zoo();
    struct error err = {""};
    struct weight w;
    float v[8];
    int rc = r->vector ? checkpoint_vector(c, v, r->rows, &err, "%s", r->tensor)
                       : checkpoint_matrix(c, &w, r->rows, r->cols, &err, "%s", r->tensor);
    expect_refusal(rc, &err, r->expected);
    checkpoint_close(c);
}

static void values_of_vectors(void **state)
{
    (void)state;
    struct checkpoint *c = open_zoo();
    struct error err = {""};
    float v[4];
    assert_int_equal(checkpoint_vector(c, v, 4, &err, "one"), 0);
    assert_true(v[0] == 1 && v[1] == 2 && v[2] == -3 && v[3] == 0.5f);
    assert_int_equal(checkpoint_vector(c, v, 3, &err, "f16"), 0);
    assert_true(v[0] == 1 && v[1] == -0x1p-24f && v[2] == -65504);
    checkpoint_close(c);
}

static void values_of_rows(void **state)
{
    (void)state;
    struct checkpoint *c = open_zoo();
    struct error err = {""};
    struct weight w;
    float v[130];
    assert_int_equal(checkpoint_matrix(c, &w, 2, 3, &err, "bf16"), 0);
    weight_row(&w, 0, v);
    assert_true(v[0] == 1 && v[1] == -2 && v[2] == 0x1p-133f);
    weight_row(&w, 1, v);
    assert_true(isinf(v[0]) && v[1] == 0 && signbit(v[2]));
    assert_int_equal(checkpoint_matrix(c, &w, 2, 2, &err, "f32"), 0);
    weight_row(&w, 1, v);
    assert_true(v[0] == 3 && v[1] == 4);
    assert_int_equal(checkpoint_matrix(c, &w, 2, 130, &err, "fp8.weight"), 0);
    weight_row(&w, 0, v);
    for (int i = 0; i < 130; i++) { // e4m3 spelled out, scale 0.5 and from column 128 on 4
        int code = i % 0x7f, e = code >> 3, m = code & 7;
        float value = e ? ldexpf(1.0f + (float)m / 8, e - 7) : ldexpf((float)m, -9);
        assert_true(v[i] == value * (i < 128 ? 0.5f : 4.0f));
    }
    weight_row(&w, 1, v);
    assert_true(isnan(v[0]));
    checkpoint_close(c);
}

/* ---- whole models ---- */

static void model_without_config(void **state)
{
    (void)state;
    char dir[128];
    new_dir(dir);
    struct model m;
    struct error err = {""};
    expect_refusal(model_open(&m, dir, &err), &err,
                   (const char *const[EXPECT_PARTS]){dir, "config.json", "No such file"});
    model_close(&m);
}

static void model_without_directory(void **state)
{
    (void)state;
    struct model m;
    struct error err = {""};
    expect_refusal(model_open(&m, "/nonexistent/model", &err), &err,
                   (const char *const[EXPECT_PARTS]){"/nonexistent/model", "No such file"});
    model_close(&m);
}

static size_t read_file(const char *path, char *text, size_t size)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(text, 1, size - 1, f);
    fclose(f);
    text[n] = '\0';
    return n;
}

static void copy_config(const char *dir)
{
    static char text[65536];
    size_t n = read_file(SOURCE_DIR "/configs/deepseek-v3.2.json", text, sizeof text);
    write_file(dir, "config.json", text, n);
}

/* eos ids of both files count once each; what is wrong in the second file is said with its name. */
static void generation_config(void **state)
{
    (void)state;
    char dir[128];
    new_dir(dir);
    copy_config(dir);
    write_file(dir, "generation_config.json", "{\"eos_token_id\":[1,5],\"bos_token_id\":3}", 39);
    struct model_config c;
    struct error err = {""};
    if (model_config_read(&c, dir, &err)) fail_msg("%s", err.text);
    assert_int_equal(c.eos_count, 2);
    assert_int_equal(c.eos_id[1], 5);
    assert_int_equal(c.bos_id, 0);
    write_file(dir, "generation_config.json", "{\"eos_token_id\":-1}", 19);
    expect_refusal(
        model_config_read(&c, dir, &err), &err,
        (const char *const[EXPECT_PARTS]){"generation_config.json", "eos_token_id is -1", "129280"});
}

/* A cache that was not filled: the link is there, the file is not. Reading on without it would change the
 * answer in silence. */
static void generation_config_is_a_broken_link(void **state)
{
    (void)state;
    char dir[128], path[256];
    new_dir(dir);
    copy_config(dir);
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    assert_int_equal(symlink("../../blobs/missing", path), 0);
    struct model_config c;
    struct error err = {""};
    expect_refusal(model_config_read(&c, dir, &err), &err,
                   (const char *const[EXPECT_PARTS]){"generation_config.json", "a link to a file"});
}

/* Nothing would ask for these tensors, and every answer would be wrong. */
static void shared_experts_are_not_in_the_config(void **state)
{
    (void)state;
    char dir[128], path[256], *key;
    static char text[65536];
    static const char source[] = SOURCE_DIR "/models/duckling";
    static const char *const files[] = {"model.safetensors.index.json", "model-00001-of-00003.safetensors",
                                        "model-00002-of-00003.safetensors",
                                        "model-00003-of-00003.safetensors"};
    new_dir(dir);
    size_t n = read_file(SOURCE_DIR "/models/duckling/config.json", text, sizeof text);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char target[256];
        snprintf(target, sizeof target, "%s/%s", source, files[i]);
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        assert_int_equal(symlink(target, path), 0);
    }
    struct model m;
    struct error err = {""};
    write_file(dir, "config.json", text, n);
    if (model_open(&m, dir, &err)) fail_msg("%s", err.text);
    model_close(&m);
    key = strstr(text, "n_shared_experts");
    assert_non_null(key);
    *key = 'N';
    write_file(dir, "config.json", text, n);
    expect_refusal(model_open(&m, dir, &err), &err,
                   (const char *const[EXPECT_PARTS]){"safetensors: tensor model.layers.1.mlp.shared_experts",
                                                     "config.json has no n_shared_experts"});
    model_close(&m);
}

int main(void)
{
    const size_t layout_count = sizeof layouts / sizeof *layouts,
                 request_count = sizeof requests / sizeof *requests;
    struct CMUnitTest tests[9 + sizeof layouts / sizeof *layouts + sizeof requests / sizeof *requests] = {
        cmocka_unit_test(files_are_no_plain_files),
        cmocka_unit_test(shard_is_a_symlink),
        cmocka_unit_test(values_of_vectors),
        cmocka_unit_test(values_of_rows),
        cmocka_unit_test(model_without_config),
        cmocka_unit_test(model_without_directory),
        cmocka_unit_test(generation_config),
        cmocka_unit_test(generation_config_is_a_broken_link),
        cmocka_unit_test(shared_experts_are_not_in_the_config),
    };
    size_t n = 9;
    for (size_t i = 0; i < layout_count; i++)
        tests[n++] =
            (struct CMUnitTest){layouts[i].name, check_layout, NULL, NULL, (void *)(uintptr_t)&layouts[i]};
    for (size_t i = 0; i < request_count; i++)
        tests[n++] =
            (struct CMUnitTest){requests[i].name, check_request, NULL, NULL, (void *)(uintptr_t)&requests[i]};
    return _cmocka_run_group_tests("model-checkpoint", tests, n, make_scratch, remove_scratch);
}
