/* jobs_test.c: the backend's contract: same bits however a sequence is cut into jobs, threads and lanes;
 * caches of other dtypes; refusals; failures that name the layer. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "host/backend/largest.h"
#include "tests/backend/harness.h"
#include "tests/backend/random.h"

#define V32 SOURCE_DIR "/tests/goldens/v32-tiny"
#define V3 SOURCE_DIR "/tests/goldens/v3-tiny"
#define TOKENS 300u

static void make_ids(const struct house *h, int32_t *ids, uint64_t seed)
{
    for (uint32_t i = 0; i < TOKENS; i++) ids[i] = (int32_t)(random_word(&seed) % h->model.config.vocab_size);
}

/* Logits of every row, main and MTP, behind each other: (2, TOKENS, vocab). */
static void run_all(struct house *h, backend_seq seq, uint32_t lane, const int32_t *ids, uint32_t from,
                    uint32_t chunk, float *logits)
{
    size_t vocab = h->model.config.vocab_size;
    const struct backend_ops *ops = h->backend->ops;
    for (uint32_t p = from; p < TOKENS; p += chunk) {
        uint32_t n = TOKENS - p < chunk ? TOKENS - p : chunk;
        struct backend_job job = {
            .kind = BACKEND_MAIN, .seq = seq, .position = p, .tokens = n, .ids = ids + p, .logits_from = 0};
        house_run(h, lane, &job);
        for (uint32_t i = 0; i < n; i++)
            memcpy(logits + (p + i) * vocab, ops->logits(h->backend, lane, i), vocab * sizeof(float));
        int32_t next[TOKENS];
        for (uint32_t i = 0; i < n; i++) next[i] = ids[(p + i + 1) % TOKENS];
        job = (struct backend_job){
            .kind = BACKEND_MTP, .seq = seq, .position = p, .tokens = n, .ids = next, .logits_from = 0};
        house_run(h, lane, &job);
        for (uint32_t i = 0; i < n; i++)
            memcpy(logits + (TOKENS + p + i) * vocab, ops->logits(h->backend, lane, i),
                   vocab * sizeof(float));
    }
}

static float *room(const struct house *h)
{
    return calloc(2 * (size_t)TOKENS * h->model.config.vocab_size, sizeof(float));
}

struct bits_case {
    const char *name, *dir;
    enum kv_dtype dtype;
};

static void chunks_and_threads_change_no_bit(void **state)
{
    const struct bits_case *c = *state;
    const struct {
        uint32_t chunk;
        unsigned threads;
    } ways[] = {{64, 1}, {1, 1}, {1, 2}, {7, 2}, {512, 2}};
    float *first = NULL;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct house h;
        int32_t ids[TOKENS];
        house_open(&h, c->dir, ways[i].threads, 512, c->dtype, true);
        make_ids(&h, ids, 99);
        float *logits = room(&h);
        run_all(&h, house_seq(&h, TOKENS), (uint32_t)i % 2, ids, 0, ways[i].chunk, logits);
        if (first &&
            memcmp(first, logits, 2 * (size_t)TOKENS * h.model.config.vocab_size * sizeof(float)) != 0)
            fail_msg("%s: chunk %u on %u threads gives other bits", c->name, ways[i].chunk, ways[i].threads);
        if (first)
            free(logits);
        else
            first = logits;
        house_close(&h);
    }
    free(first);
}

/* Two sequences whose jobs alternate, one of them begun from a copy of a prefix and with a rejected draft
 * overwritten, equal each sequence alone. */
static void lanes_and_copies_equal_each_sequence_alone(void **state)
{
    (void)state;
    struct house h;
    int32_t a[TOKENS], b[TOKENS];
    house_open(&h, V32, 2, 64, KV_F32, true);
    make_ids(&h, a, 1);
    make_ids(&h, b, 2);
    memcpy(b, a, 102 * sizeof *a); // the MTP layer at position 100 has seen token 101
    size_t vocab = h.model.config.vocab_size;
    float *la = room(&h), *lb = room(&h), *again = room(&h);
    backend_seq sa = house_seq(&h, TOKENS), sb = house_seq(&h, TOKENS), sc;
    run_all(&h, sa, 0, a, 0, 64, la);
    run_all(&h, sb, 1, b, 0, 50, lb);
    struct error err = {""};
    const struct backend_ops *ops = h.backend->ops;
    assert_int_equal(ops->seq_fork(h.backend, &sc, sa, 101, TOKENS + 50, &err), 0);
    int32_t wrong[3] = {5, 6, 7};
    struct backend_job job = {
        .kind = BACKEND_MAIN, .seq = sc, .position = 101, .tokens = 3, .ids = wrong, .logits_from = 3};
    house_run(&h, 0, &job);
    memcpy(again, lb, 101 * vocab * sizeof(float));
    memcpy(again + TOKENS * vocab, lb + TOKENS * vocab, 101 * vocab * sizeof(float));
    run_all(&h, sc, 0, b, 101, 33, again);
    assert_memory_equal(again, lb, 2 * TOKENS * vocab * sizeof(float));

    // steps of two lanes in turn
    struct backend_job ja = {.kind = BACKEND_MAIN,
                             .seq = sa,
                             .position = 200,
                             .tokens = 20,
                             .ids = a + 200,
                             .logits_from = 0},
                       jb = {.kind = BACKEND_MAIN,
                             .seq = sb,
                             .position = 200,
                             .tokens = 1,
                             .ids = b + 200,
                             .logits_from = 0};
    assert_int_equal(ops->start(h.backend, 0, &ja, &err), 0);
    assert_int_equal(ops->start(h.backend, 1, &jb, &err), 0);
    for (bool done = false; !done;) {
        struct mlp_step step[2];
        done = true;
        for (uint32_t lane = 0; lane < 2; lane++)
            if (ops->poll(h.backend, lane, &step[lane], &err) == BACKEND_MLP) done = false;
        for (uint32_t lane = 0; lane < 2 && !done; lane++) {
            feed_forward_run(h.ff, &step[lane]);
            ops->resume(h.backend, lane);
        }
    }
    for (uint32_t i = 0; i < 20; i++)
        assert_memory_equal(ops->logits(h.backend, 0, i), la + (200 + i) * vocab, vocab * sizeof(float));
    assert_memory_equal(ops->logits(h.backend, 1, 0), lb + 200 * vocab, vocab * sizeof(float));
    free(la), free(lb), free(again);
    house_close(&h);
}

/* best() of the main model's rows is what the logits say; of the MTP layer's, by its rounded head, one of the
 * tokens they like. Nobody's row depends on how many are asked for. */
static void best_and_candidates_are_those_of_all_logits(void **state)
{
    (void)state;
    enum { ROWS = 24 };
    struct house h;
    int32_t ids[TOKENS], one[ROWS];
    house_open(&h, V32, 2, ROWS, KV_F32, true);
    make_ids(&h, ids, 11);
    const uint32_t vocab = h.model.config.vocab_size;
    const struct backend_ops *ops = h.backend->ops;
    const backend_seq seq = house_seq(&h, TOKENS);
    for (int mtp = 0; mtp < 2; mtp++) {
        struct backend_job job = {.kind = mtp ? BACKEND_MTP : BACKEND_MAIN,
                                  .seq = seq,
                                  .tokens = ROWS,
                                  .ids = ids + mtp,
                                  .logits_from = 0};
        house_run(&h, 0, &job);
        job.best_only = true;
        house_run(&h, 1, &job);
        uint32_t agree = 0;
        for (uint32_t i = 0; i < ROWS; i++) {
            one[i] = ops->best(h.backend, 1, i);
            assert_in_range(one[i], 0, vocab - 1);
            agree += one[i] == largest_logit(ops->logits(h.backend, 0, i), vocab);
        }
        if (agree < (mtp ? ROWS / 2 : ROWS)) fail_msg("%u of %d rows agree with their logits", agree, ROWS);
        job.logits_from = ROWS - 1;
        house_run(&h, 1, &job);
        assert_int_equal(ops->best(h.backend, 1, ROWS - 1), one[ROWS - 1]);
    }
    house_close(&h);
}

/* The last layer computes only what somebody reads; what the rows left out leave behind is the same. */
static void rows_nobody_reads_change_nothing(void **state)
{
    (void)state;
    for (int mtp = 0; mtp < 2; mtp++) {
        struct house h;
        int32_t ids[TOKENS + 1];
        house_open(&h, V32, 1, 128, KV_F32, mtp);
        make_ids(&h, ids, 7);
        ids[TOKENS] = 1;
        size_t vocab = h.model.config.vocab_size;
        const struct backend_ops *ops = h.backend->ops;
        const uint32_t last = h.model.config.layers - (mtp ? 0 : 1); // the layer where rows are left out
        float *expected = malloc(2 * vocab * sizeof *expected);
        for (uint32_t from = 0; from <= 128; from += 127) { // 127: of the first job's rows only the last
            backend_seq seq = house_seq(&h, TOKENS);
            uint32_t rows = 0;
            for (uint32_t part = 0; part < 4; part++) {
                struct backend_job job = {.kind = BACKEND_MAIN,
                                          .seq = seq,
                                          .position = part < 2 ? 0 : 128,
                                          .tokens = part < 2 ? 128 : 2,
                                          .ids = ids,
                                          .logits_from = 0};
                job.logits_from = part < 2 ? from : 0;
                job.ids += job.position;
                if (part % 2 && !mtp) continue;
                if (part % 2) {
                    job.kind = BACKEND_MTP;
                    job.ids++;
                    if (part == 1 && from) job.logits_from = 128; // and of these none at all
                }
                struct error err = {""};
                struct mlp_step step;
                assert_int_equal(ops->start(h.backend, 0, &job, &err), 0);
                while (ops->poll(h.backend, 0, &step, &err) == BACKEND_MLP) {
                    if (step.layer == last && part < 2) rows += step.tokens;
                    feed_forward_run(h.ff, &step);
                    ops->resume(h.backend, 0);
                }
                if (part != (mtp ? 3 : 2)) continue;
                for (uint32_t r = 0; r < 2; r++) {
                    const float *logits = ops->logits(h.backend, 0, r);
                    if (from) assert_memory_equal(logits, expected + r * vocab, vocab * sizeof(float));
                    memcpy(expected + r * vocab, logits, vocab * sizeof(float));
                }
            }
            assert_int_equal(rows, from == 0 ? 128 : mtp ? 0 : 1);
        }
        free(expected);
        house_close(&h);
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of the rows of a random model some are thrown far off by another choice of experts: the median tells. */
static double median_error(const float *logits, const float *expected, size_t vocab)
{
    double e[TOKENS];
    for (size_t i = 0; i < TOKENS; i++) e[i] = relative_l2(logits + i * vocab, expected + i * vocab, vocab);
    qsort(e, TOKENS, sizeof *e, by_size);
    return e[TOKENS / 2];
}

static void smaller_kv_types_lose_what_they_may(void **state)
{
    (void)state;
    const struct {
        enum kv_dtype dtype;
        double least, most;
    } kinds[] = {{KV_F32, 0, 0}, {KV_BF16, 1e-4, 1e-2}, {KV_FP8, 1e-3, 0.1}};
    float *first = NULL;
    uint64_t bytes = UINT64_MAX;
    for (size_t i = 0; i < 3; i++) {
        struct house h;
        int32_t ids[TOKENS];
        house_open(&h, V3, 1, 64, kinds[i].dtype, false); // dense: no selection changes
        make_ids(&h, ids, 3);
        uint64_t before = h.backend->ops->memory_bytes(h.backend);
        size_t vocab = h.model.config.vocab_size;
        float *logits = malloc(TOKENS * vocab * sizeof *logits);
        backend_seq seq = house_seq(&h, TOKENS);
        for (uint32_t p = 0; p < TOKENS; p += 50) {
            struct backend_job job = {.kind = BACKEND_MAIN,
                                      .seq = seq,
                                      .position = p,
                                      .tokens = 50,
                                      .ids = ids + p,
                                      .logits_from = 0};
            house_run(&h, 0, &job);
            for (uint32_t r = 0; r < 50; r++)
                memcpy(logits + (p + r) * vocab, h.backend->ops->logits(h.backend, 0, r),
                       vocab * sizeof *logits);
        }
        uint64_t used = h.backend->ops->memory_bytes(h.backend) - before;
        assert_true(used < bytes);
        bytes = used;
        if (first) {
            double e = median_error(logits, first, vocab);
            if (!(e > kinds[i].least && e < kinds[i].most)) fail_msg("dtype %zu: relative error %g", i, e);
            free(logits);
        } else {
            first = logits;
        }
        house_close(&h);
    }
    free(first);
}

static void refused(struct house *h, struct backend_job job, const char *part)
{
    struct error err = {""};
    if (h->backend->ops->start(h->backend, 0, &job, &err) == 0) fail_msg("not refused: %s", part);
    if (!strstr(err.text, part)) fail_msg("'%s' does not say '%s'", err.text, part);
}

static void impossible_jobs_are_refused(void **state)
{
    (void)state;
    struct house h;
    int32_t ids[TOKENS], bad[2] = {3, 100000};
    house_open(&h, V32, 1, 16, KV_F32, true);
    make_ids(&h, ids, 4);
    backend_seq seq = house_seq(&h, 20);
    refused(&h,
            (struct backend_job){
                .kind = BACKEND_MAIN, .seq = seq, .position = 10, .tokens = 11, .ids = ids, .logits_from = 0},
            "capacity, 20");
    refused(&h,
            (struct backend_job){.kind = BACKEND_MAIN,
                                 .seq = seq,
                                 .position = UINT32_MAX,
                                 .tokens = 2,
                                 .ids = ids,
                                 .logits_from = 0},
            "capacity, 20");
    refused(&h,
            (struct backend_job){
                .kind = BACKEND_MAIN, .seq = seq, .position = 0, .tokens = 17, .ids = ids, .logits_from = 0},
            "1 to 16");
    refused(&h,
            (struct backend_job){
                .kind = BACKEND_MAIN, .seq = seq, .position = 0, .tokens = 0, .ids = ids, .logits_from = 0},
            "1 to 16");
    refused(&h,
            (struct backend_job){
                .kind = BACKEND_MAIN, .seq = seq, .position = 0, .tokens = 2, .ids = bad, .logits_from = 0},
            "token 100000 at position 1");
    refused(&h,
            (struct backend_job){
                .kind = BACKEND_MAIN, .seq = seq, .position = 0, .tokens = 2, .ids = ids, .logits_from = 3},
            "row 3");
    refused(&h,
            (struct backend_job){
                .kind = BACKEND_MAIN, .seq = 77, .position = 0, .tokens = 2, .ids = ids, .logits_from = 0},
            "sequence 77");
    refused(&h,
            (struct backend_job){
                .kind = BACKEND_MTP, .seq = seq, .position = 0, .tokens = 2, .ids = ids, .logits_from = 0},
            "position 0");
    struct error err = {""};
    backend_seq other;
    assert_true(h.backend->ops->seq_open(h.backend, &other, 1u << 20, &err) < 0);
    // a lane with a job takes no other until it is cancelled
    struct backend_job job = {
        .kind = BACKEND_MAIN, .seq = seq, .position = 0, .tokens = 2, .ids = ids, .logits_from = 0};
    assert_int_equal(h.backend->ops->start(h.backend, 0, &job, &err), 0);
    refused(&h, job, "lane 0");
    h.backend->ops->cancel(h.backend, 0);
    house_run(&h, 0, &job);
    h.backend->ops->seq_close(h.backend, seq);
    refused(&h, job, "not open");
    assert_int_equal(house_seq(&h, 5), seq);
    house_close(&h);
}

/* A flock that answers with a NaN in one row of one layer. */
static void a_nan_from_the_flock_is_noticed(void **state)
{
    (void)state;
    struct house h;
    int32_t ids[TOKENS];
    house_open(&h, V32, 1, 16, KV_F32, false);
    make_ids(&h, ids, 5);
    const struct {
        uint32_t layer;
        const char *says;
    } cases[] = {{0, "layer 1: "}, {1, "layer 2: "}, {2, "layer 2: "}};
    for (size_t i = 0; i < 3; i++) {
        struct backend_job job = {.kind = BACKEND_MAIN,
                                  .seq = house_seq(&h, 20),
                                  .position = 0,
                                  .tokens = 9,
                                  .ids = ids,
                                  .logits_from = 6};
        struct error err = {""};
        struct mlp_step step;
        enum backend_event event;
        const struct backend_ops *ops = h.backend->ops;
        assert_int_equal(ops->start(h.backend, 0, &job, &err), 0);
        while ((event = ops->poll(h.backend, 0, &step, &err)) == BACKEND_MLP) {
            feed_forward_run(h.ff, &step);
            if (step.layer == cases[i].layer)
                step.y[(step.tokens - 3) * h.model.config.hidden_size + 3] = i == 1 ? INFINITY : NAN;
            ops->resume(h.backend, 0);
        }
        assert_int_equal(event, BACKEND_FAILED);
        if (!strstr(err.text, cases[i].says) || !strstr(err.text, "position 6"))
            fail_msg("'%s' does not say '%sposition 6'", err.text, cases[i].says);
        err.text[0] = 0;
        assert_int_equal(ops->poll(h.backend, 0, &step, &err),
                         BACKEND_FAILED); // it stays failed, with its message
        assert_true(err.text[0] != 0);
        house_run(&h, 0, &job); // and the lane works again
    }
    house_close(&h);
}

static struct bits_case bits[] = {{"same bits: dense", V3, KV_F32},
                                  {"same bits: sparse", V32, KV_F32},
                                  {"same bits: sparse, fp8 cache", V32, KV_FP8}};

int main(void)
{
    const struct CMUnitTest tests[] = {
        {bits[0].name, chunks_and_threads_change_no_bit, NULL, NULL, &bits[0]},
        {bits[1].name, chunks_and_threads_change_no_bit, NULL, NULL, &bits[1]},
        {bits[2].name, chunks_and_threads_change_no_bit, NULL, NULL, &bits[2]},
        cmocka_unit_test(lanes_and_copies_equal_each_sequence_alone),
        cmocka_unit_test(best_and_candidates_are_those_of_all_logits),
        cmocka_unit_test(rows_nobody_reads_change_nothing),
        cmocka_unit_test(smaller_kv_types_lose_what_they_may),
        cmocka_unit_test(impossible_jobs_are_refused),
        cmocka_unit_test(a_nan_from_the_flock_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
