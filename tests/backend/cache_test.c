/* cache_test.c: what sequences remember: element formats, copies, recent hidden states. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "fp9/fp9.h"
#include "host/backend/cpu/kv.h"
#include "tests/backend/random.h"

#define LATENT 40u
#define ROPE 16u
#define KEY (LATENT + ROPE)
#define DIM 24u

struct dtype_case {
    const char *name;
    enum kv_dtype dtype;
    double tolerance; // of a value, relative to the largest of its part
};

static struct kv_shape shape_of(enum kv_dtype dtype)
{
    return (struct kv_shape){.dtype = dtype,
                             .layers = 3,
                             .latent = LATENT,
                             .rope = ROPE,
                             .index_dim = DIM,
                             .hidden = 16,
                             .recent = 5};
}

static void write_position(const struct kv *kv, uint32_t layer, uint32_t position, const float *row)
{
    struct kv_layer l = kv_layer(kv, layer);
    kv_write(&l, position, row, row + LATENT);
    kv_write_index(&l, position, row);
}

static void read_position(const struct kv *kv, uint32_t layer, uint32_t position, float *row, float *key)
{
    _Alignas(64) float scratch[KEY], tile[8 * DIM];
    struct kv_layer l = kv_layer(kv, layer);
    memcpy(row, kv_row(&l, position, scratch), sizeof scratch);
    const float *t = kv_tile(&l, position / KV_TILE, tile);
    for (size_t i = 0; i < DIM; i++) key[i] = t[KV_TILE * i + position % KV_TILE];
}

static void near_values(const float *a, const float *b, size_t n, double tolerance)
{
    double largest = 0;
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)b[i]));
    for (size_t i = 0; i < n; i++) assert_true(fabs((double)a[i] - (double)b[i]) <= tolerance * largest);
}

static void rows_come_back_rounded_to_their_type(void **state)
{
    const struct dtype_case *c = *state;
    struct kv_shape shape = shape_of(c->dtype);
    struct kv kv, copy;
    struct error err = {""};
    uint64_t seed = 2;
    float rows[3][21][KEY], row[KEY], key[DIM], row2[KEY], key2[DIM];
    assert_int_equal(kv_open(&kv, &shape, 21, &err), 0);
    assert_int_equal(kv_open(&copy, &shape, 30, &err), 0);
    for (uint32_t layer = 0; layer < 3; layer++)
        for (uint32_t p = 0; p < 21; p++) {
            for (uint32_t i = 0; i < KEY; i++)
                rows[layer][p][i] = random_float(&seed) * (i < LATENT ? 50.0f : 0.01f);
            if (p == 4) memset(rows[layer][p], 0, sizeof rows[layer][p]);
            write_position(&kv, layer, p, rows[layer][p]);
        }
    float beyond[KEY];
    for (uint32_t i = 0; i < KEY; i++) beyond[i] = (float)i;
    write_position(&copy, 1, 19, beyond);
    float was[KEY], was_key[DIM];
    read_position(&copy, 1, 19, was, was_key);
    kv.used = 21;
    kv_copy(&copy, &kv, 19); // in the middle of a tile; position 19 is the target's own
    assert_int_equal(copy.used, 19);
    for (uint32_t layer = 0; layer < 3; layer++)
        for (uint32_t p = 0; p < 21; p++) {
            read_position(&kv, layer, p, row, key);
            near_values(row, rows[layer][p], LATENT, c->tolerance);
            near_values(row + LATENT, rows[layer][p] + LATENT, ROPE, c->tolerance);
            near_values(key, rows[layer][p], DIM, c->tolerance);
            if (p >= 19) continue;
            read_position(&copy, layer, p, row2, key2);
            assert_memory_equal(row, row2, sizeof row);
            assert_memory_equal(key, key2, sizeof key);
        }
    read_position(&copy, 1, 19, row, key);
    assert_memory_equal(row, was, sizeof row);
    assert_memory_equal(key, was_key, sizeof key);
    kv_close(&kv);
    kv_close(&copy);
}

/* With a largest value of 448 the scale is 1: every e4m3 number must come back as itself, and a number
 * halfway between two goes to the even code. */
static void fp8_takes_the_nearest_code(void **state)
{
    (void)state;
    struct kv_shape shape = shape_of(KV_FP8);
    struct kv kv;
    struct error err = {""};
    float row[KEY] = {448.0f}, got[KEY], key[DIM];
    row[LATENT] = 448.0f;
    assert_int_equal(kv_open(&kv, &shape, 1, &err), 0);
    for (unsigned code = 0; code < 255; code++) {
        if ((code & 0x7f) == 0x7f) continue;
        float v = fp9_e4m3_to_float((uint8_t)code);
        row[1] = row[LATENT + 1] = v;
        bool has_next = (code & 0x7f) < 0x7e;
        float next = has_next ? fp9_e4m3_to_float((uint8_t)(code + 1)) : v;
        row[2] = 0.5f * (v + next);
        write_position(&kv, 0, 0, row);
        read_position(&kv, 0, 0, got, key);
        assert_float_equal(got[1], v, 0);
        assert_float_equal(got[LATENT + 1], v, 0);
        assert_float_equal(key[1], v, 0);
        assert_float_equal(got[2], (code % 2 ? next : v), 0);
    }
    kv_close(&kv);
}

static void the_latest_hidden_states_are_kept(void **state)
{
    (void)state;
    struct kv_shape shape = shape_of(KV_F32);
    struct kv kv, copy;
    struct error err = {""};
    assert_int_equal(kv_open(&kv, &shape, 100, &err), 0);
    assert_int_equal(kv_open(&copy, &shape, 100, &err), 0);
    assert_null(kv_hidden(&kv, 0));
    for (uint32_t p = 0; p < 12; p++) kv_hidden_slot(&kv, p)[3] = (float)p;
    assert_null(kv_hidden(&kv, 6)); // 5 are remembered
    for (uint32_t p = 7; p < 12; p++) assert_float_equal(kv_hidden(&kv, p)[3], (float)p, 0);
    kv_copy(&copy, &kv, 10);
    assert_null(kv_hidden(&copy, 10));
    for (uint32_t p = 7; p < 10; p++) assert_float_equal(kv_hidden(&copy, p)[3], (float)p, 0);
    kv_close(&kv);
    kv_close(&copy);
}

/* Into one piece of bytes and back, in caches of other capacities. */
static void an_image_fits_caches_of_other_sizes(void **state)
{
    (void)state;
    for (int dtype = KV_F32; dtype <= KV_FP8; dtype++) {
        struct kv_shape shape = shape_of((enum kv_dtype)dtype);
        struct kv from, to;
        struct error err = {""};
        float row[KEY], a[KEY], b[KEY], key_a[DIM], key_b[DIM];
        assert_int_equal(kv_open(&from, &shape, 100, &err), 0);
        assert_int_equal(kv_open(&to, &shape, 21, &err), 0);
        for (uint32_t p = 0; p < 30; p++)
            for (uint32_t layer = 0; layer < shape.layers; layer++) {
                for (uint32_t i = 0; i < KEY; i++) row[i] = (float)(p * 31 + layer * 7 + i);
                write_position(&from, layer, p, row);
            }
        uint8_t *image = malloc(kv_image_bytes(&shape, 21)); // its exact size: a sanitizer sees more
        assert_non_null(image);
        kv_to_image(&from, 21, image);
        kv_from_image(&to, 21, image);
        for (uint32_t p = 0; p < 21; p++)
            for (uint32_t layer = 0; layer < shape.layers; layer++) {
                read_position(&from, layer, p, a, key_a);
                read_position(&to, layer, p, b, key_b);
                assert_memory_equal(a, b, sizeof a);
                assert_memory_equal(key_a, key_b, sizeof key_a);
            }
        free(image);
        kv_close(&from);
        kv_close(&to);
    }
}

static struct dtype_case dtypes[] = {
    {"f32", KV_F32, 0}, {"bf16", KV_BF16, 0x1p-8}, {"fp8", KV_FP8, 0x1p-4 * 1.01}};

int main(void)
{
    enum { CASES = sizeof dtypes / sizeof *dtypes };
    struct CMUnitTest tests[CASES + 3] = {[CASES] = cmocka_unit_test(fp8_takes_the_nearest_code),
                                          [CASES + 1] = cmocka_unit_test(the_latest_hidden_states_are_kept),
                                          [CASES + 2] =
                                              cmocka_unit_test(an_image_fits_caches_of_other_sizes)};
    for (size_t i = 0; i < CASES; i++)
        tests[i] =
            (struct CMUnitTest){dtypes[i].name, rows_come_back_rounded_to_their_type, NULL, NULL, &dtypes[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
