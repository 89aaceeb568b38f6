/* cuda_kv_test.c: prefixes that sequences share, and images of them: the bits of a text do not depend on
 * whose pages its prefix lies in, writing into a shared page leaves the others alone, pages are counted. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "tests/cuda/bed.h"

#define CHUNK 48u
#define LENGTH 320u

static const struct backend_ops *ops;
static const struct bed_case v3 = {"tests/goldens/v3-tiny", KV_BF16, SHARED_FLOCK};

static void make_ids(struct bed *bed, int32_t *ids, uint32_t salt)
{
    uint32_t z = salt;
    for (uint32_t i = 0; i < LENGTH; i++) {
        z = z * 1664525u + 1013904223u;
        ids[i] = (int32_t)((z >> 8) % bed->model.config.vocab_size);
    }
}

/* Logits of one row at `position`, to be freed. */
static float *row_at(struct bed *bed, backend_seq seq, const int32_t *ids, uint32_t position)
{
    const size_t bytes = bed->model.config.vocab_size * sizeof(float);
    const struct backend_job job = {
        .kind = BACKEND_MAIN, .seq = seq, .position = position, .tokens = 1, .ids = ids + position};
    float *out = malloc(bytes);
    bed_run(bed, 0, &job);
    memcpy(out, ops->logits(bed->b, 0, 0), bytes);
    return out;
}

static void same_row(struct bed *bed, backend_seq seq, const int32_t *ids, uint32_t position,
                     const float *want, const char *what)
{
    float *got = row_at(bed, seq, ids, position);
    if (memcmp(got, want, bed->model.config.vocab_size * sizeof *got) != 0)
        fail_msg("%s: other logits at position %u", what, position);
    free(got);
}

/* Whole pages, a page begun, and one position more or less than pages. */
static const uint32_t lengths[] = {1, 63, 64, 65, 128, 200, 300};

static void test_shared(void **state)
{
    const struct bed_case *c = *state;
    struct bed bed;
    int32_t ids[LENGTH], other[LENGTH];
    bed_open(&bed, ops, c, 1, CHUNK);
    make_ids(&bed, ids, 1);
    for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
        const uint32_t n = lengths[k];
        const backend_seq a = bed_seq(&bed, LENGTH);
        bed_prefill(&bed, a, ids, n, CHUNK);
        float *want = row_at(&bed, a, ids, n);
        const backend_seq b = bed_fork(&bed, a, n, LENGTH), d = bed_fork(&bed, b, n, LENGTH);
        // d's text turns elsewhere in the middle of what is shared: pages of its own from there on.
        memcpy(other, ids, sizeof ids);
        for (uint32_t i = n / 2; i < LENGTH; i++) other[i] = ids[LENGTH - 1 - i];
        for (uint32_t i = n / 2; i <= n; i++) free(row_at(&bed, d, other, i));
        same_row(&bed, b, ids, n, want, "a prefix that another one leaves");
        ops->seq_close(bed.b, a);
        const backend_seq fresh = bed_seq(&bed, LENGTH); // gets the pages that are free now
        bed_prefill(&bed, fresh, other, LENGTH - 1, CHUNK);
        same_row(&bed, b, ids, n, want, "a prefix whose first owner is gone");
        free(want);
        want = row_at(&bed, d, other, n);
        const backend_seq alone = bed_seq(&bed, LENGTH);
        bed_prefill(&bed, alone, ids, n, CHUNK);
        for (uint32_t i = n / 2; i < n; i++) free(row_at(&bed, alone, other, i));
        same_row(&bed, alone, other, n, want, "the text that left, computed alone");
        free(want);
        ops->seq_close(bed.b, b);
        ops->seq_close(bed.b, d);
        ops->seq_close(bed.b, fresh);
        ops->seq_close(bed.b, alone);
    }
    bed_close(&bed);
}

static void test_image(void **state)
{
    const struct bed_case *c = *state;
    struct bed bed;
    struct error err;
    int32_t ids[LENGTH];
    bed_open(&bed, ops, c, 1, CHUNK);
    make_ids(&bed, ids, 2);
    for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
        const uint32_t n = lengths[k];
        const backend_seq a = bed_seq(&bed, LENGTH), b = bed_seq(&bed, n + 1), d = bed_seq(&bed, LENGTH);
        bed_prefill(&bed, a, ids, n, CHUNK);
        const uint64_t bytes = ops->kv_bytes(bed.b, n);
        uint8_t *image = malloc(bytes + 8), *again = malloc(bytes);
        memset(image + bytes, 0x5a, 8);
        assert_int_equal(ops->kv_save(bed.b, a, n, image, &err), 0);
        float *want = row_at(&bed, a, ids, n);
        ops->seq_close(bed.b, a);
        bed_prefill(&bed, d, ids + 1, n, CHUNK);
        assert_int_equal(ops->kv_load(bed.b, b, n, image, &err), 0);
        assert_int_equal(ops->kv_save(bed.b, b, n, again, &err), 0);
        assert_memory_equal(image, again, bytes);
        for (size_t i = 0; i < 8; i++) assert_int_equal(image[bytes + i], 0x5a);
        same_row(&bed, b, ids, n, want, "a loaded image");
        free(want);
        free(image);
        free(again);
        ops->seq_close(bed.b, b);
        ops->seq_close(bed.b, d);
    }
    bed_close(&bed);
}

#define MOST 256u

/* The pool is a fixed number of pages. Copies of one text take one page each once their own came back. */
static void test_pool(void **state)
{
    (void)state;
    struct bed bed;
    struct error err;
    int32_t ids[LENGTH];
    backend_seq seq[MOST];
    bed_open(&bed, ops, &v3, 1, CHUNK);
    make_ids(&bed, ids, 3);
    const uint32_t longest = bed.model.config.max_positions, n = longest < LENGTH ? longest - 1 : LENGTH - 1;
    uint32_t plain = 0, shared = 1;
    while (plain < MOST && !ops->seq_open(bed.b, &seq[plain], longest, &err)) plain++;
    assert_in_range(plain, 1, MOST - 1);
    print_message("%u sequences of %u positions: then %s\n", plain, longest, err.text);
    while (plain) ops->seq_close(bed.b, seq[--plain]);
    seq[0] = bed_seq(&bed, longest);
    bed_prefill(&bed, seq[0], ids, n, CHUNK);
    float *want = row_at(&bed, seq[0], ids, n);
    while (shared < MOST && !ops->seq_fork(bed.b, &seq[shared], seq[0], n, n + 1, &err)) shared++;
    print_message("one text %u times: then %s\n", shared, err.text);
    assert_true(shared > 8); // eight is what the pool holds of full length
    same_row(&bed, seq[shared - 1], ids, n, want, "the last of many");
    free(want);
    while (shared) ops->seq_close(bed.b, seq[--shared]);
    while (plain < MOST && !ops->seq_open(bed.b, &seq[plain], longest, &err)) plain++;
    assert_in_range(plain, 1, MOST - 1); // all pages came back
    bed_close(&bed);
}

/* A fork needs pages for what it does not share only; one that finds none changes nothing. */
static void test_full_pool(void **state)
{
    (void)state;
    struct bed bed;
    struct error err;
    int32_t ids[LENGTH];
    backend_seq seq[MOST], fork;
    bed_open(&bed, ops, &v3, 1, CHUNK);
    make_ids(&bed, ids, 4);
    const uint32_t longest = bed.model.config.max_positions, n = longest < LENGTH ? longest - 1 : LENGTH - 1;
    seq[0] = bed_seq(&bed, longest);
    bed_prefill(&bed, seq[0], ids, n, CHUNK);
    float *want = row_at(&bed, seq[0], ids, n);
    uint32_t count = 1;
    while (count < MOST && !ops->seq_open(bed.b, &seq[count], longest, &err)) count++;
    while (count < MOST && !ops->seq_open(bed.b, &seq[count], 1, &err)) count++;
    assert_in_range(count, 2, MOST - 1);
    assert_int_equal(ops->seq_open(bed.b, &fork, 1, &err), -ENOMEM); // pages, not sequences, are all in use
    assert_int_equal(ops->seq_fork(bed.b, &fork, seq[0], n, n + 1, &err), -ENOMEM);
    ops->seq_close(bed.b, seq[--count]);
    const uint32_t one = (n - 1) / 64 * 64 + 64; // as far as the page of the prefix's last position goes
    seq[count++] = fork = bed_fork(&bed, seq[0], n, one);
    if (n < one) same_row(&bed, fork, ids, n, want, "a fork in the last page");
    same_row(&bed, seq[0], ids, n, want, "what was forked");
    free(want);
    while (count) ops->seq_close(bed.b, seq[--count]);
    bed_close(&bed);
}

int main(void)
{
    ops = bed_backend();
    if (!ops) return BED_SKIPPED;
    struct CMUnitTest tests[2 * BED_CASES + 2];
    size_t n = 0;
    for (size_t i = 0; i < BED_CASES; i++) {
        tests[n++] =
            (struct CMUnitTest){"shared prefixes", test_shared, NULL, NULL, (void *)(uintptr_t)&bed_cases[i]};
        tests[n++] = (struct CMUnitTest){"images", test_image, NULL, NULL, (void *)(uintptr_t)&bed_cases[i]};
    }
    tests[n++] = (struct CMUnitTest){"the pool", test_pool, NULL, NULL, NULL};
    tests[n++] = (struct CMUnitTest){"a full pool", test_full_pool, NULL, NULL, NULL};
    return cmocka_run_group_tests_name("cuda-kv", tests, NULL, NULL);
}
