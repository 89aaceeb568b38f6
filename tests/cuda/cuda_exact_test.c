/* cuda_exact_test.c: a token's bits depend on its own sequence only: not on the rows of its job, on other
 * lanes, on whether a graph is replayed, on jobs dropped before; sequences can be copied; bad jobs are
 * refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "tests/cuda/bed.h"

#define LANES 4u
#define CHUNK 48u
#define LENGTH 400u

static const struct backend_ops *ops;
static const struct bed_case duckling = {"models/duckling", KV_BF16, SHARED_BACKEND};

static int32_t token_at(uint32_t i, uint32_t salt, uint32_t vocab)
{
    uint32_t z = (i + 1) * 0x9e3779b9u ^ salt * 0x85ebca6bu;
    z = (z ^ z >> 16) * 0x7feb352du;
    return (int32_t)((z ^ z >> 15) % vocab);
}

struct text {
    int32_t ids[LENGTH];
    backend_seq seq;
};

static void make_text(struct bed *bed, struct text *t, uint32_t salt, uint32_t filled)
{
    for (uint32_t i = 0; i < LENGTH; i++) t->ids[i] = token_at(i, salt, bed->model.config.vocab_size);
    t->seq = bed_seq(bed, LENGTH);
    bed_prefill(bed, t->seq, t->ids, filled, CHUNK);
}

/* A job of these rows, all of whose logits are wanted. */
static struct backend_job rows_job(backend_seq seq, uint32_t position, uint32_t tokens, const int32_t *ids)
{
    return (struct backend_job){
        .kind = BACKEND_MAIN, .seq = seq, .position = position, .tokens = tokens, .ids = ids};
}

static void same(struct bed *bed, uint32_t lane, uint32_t row, const float *want, const char *what)
{
    const size_t vocab = bed->model.config.vocab_size;
    const float *got = bed->b->ops->logits(bed->b, lane, row);
    for (size_t i = 0; i < vocab; i++)
        if (memcmp(&got[i], &want[i], sizeof *got))
            fail_msg("%s: logit %zu is %.9g, alone %.9g", what, i, (double)got[i], (double)want[i]);
}

static void ignore_row(void *ctx, const char *name, uint32_t layer, uint32_t position, const float *f,
                       const int32_t *i, size_t n)
{
    (void)name, (void)layer, (void)position, (void)f, (void)i, (void)n;
    ++*(size_t *)ctx;
}

/* Of each row the largest logits in order, the sums, and then the row itself: the same bits. */
static void compare_candidates(struct bed *bed, const struct text *t, uint32_t p, const float *want)
{
    const uint32_t vocab = bed->model.config.vocab_size;
    for (uint32_t n = 1; n <= 16; n += 3) { // as graphs and step by step
        const struct backend_job job = {.kind = BACKEND_MAIN,
                                        .seq = t->seq,
                                        .position = p,
                                        .tokens = n,
                                        .ids = t->ids + p,
                                        .logits_from = n / 3,
                                        .candidates = true,
                                        .temperature = 0.5f};
        bed_run(bed, 0, &job);
        for (uint32_t r = n / 3; r < n && r < 4; r++) {
            const struct backend_candidates *c = ops->candidates(bed->b, 0, r);
            const float *l = want + (size_t)r * vocab;
            double mass = 0, tempered = 0;
            assert_int_equal(c->count, vocab < BACKEND_CANDIDATES ? vocab : BACKEND_CANDIDATES);
            for (uint32_t i = 0; i < vocab; i++) {
                mass += exp((double)l[i] - (double)c->logit[0]);
                tempered += exp(((double)l[i] - (double)c->logit[0]) / 0.5);
            }
            assert_true(fabs(c->mass / mass - 1) < 1e-12 && fabs(c->tempered / tempered - 1) < 1e-12);
            for (uint32_t i = 0; i < c->count; i++) {
                uint32_t better = 0;
                for (uint32_t v = 0; v < vocab; v++)
                    better += l[v] > l[c->id[i]] || (l[v] == l[c->id[i]] && v < (uint32_t)c->id[i]);
                assert_int_equal(better, i);
                assert_memory_equal(&c->logit[i], &l[c->id[i]], sizeof *l);
            }
            same(bed, 0, r, l, "a row behind its candidates");
        }
    }
}

/* Positions before the model's top-k and beyond. */
static const uint32_t starts[] = {40, 300};

static void test_exact(void **state)
{
    const struct bed_case *c = *state;
    struct bed bed;
    bed_open(&bed, ops, c, LANES, CHUNK);
    const size_t vocab = bed.model.config.vocab_size;
    float *want = malloc(4 * vocab * sizeof *want);
    for (size_t k = 0; k < sizeof starts / sizeof starts[0]; k++) {
        const uint32_t p = starts[k];
        struct text t[LANES];
        for (uint32_t i = 0; i < LANES; i++) make_text(&bed, &t[i], i, p);
        for (uint32_t r = 0; r < 4; r++) {
            const struct backend_job job = rows_job(t[0].seq, p + r, 1, t[0].ids + p + r);
            bed_run(&bed, 0, &job);
            memcpy(want + r * vocab, bed.b->ops->logits(bed.b, 0, 0), vocab * sizeof *want);
        }
        for (uint32_t n = 2; n <= 8; n++) {
            const struct backend_job job = rows_job(t[0].seq, p, n, t[0].ids + p);
            bed_run(&bed, n % LANES, &job);
            for (uint32_t r = 0; r < n && r < 4; r++)
                same(&bed, n % LANES, r, want + r * vocab, "rows of one job");
        }
        size_t seen = 0;
        const struct backend_probe probe = {ignore_row, &seen};
        bed.b->ops->set_probe(bed.b, &probe);
        const struct backend_job alone = rows_job(t[0].seq, p, 1, t[0].ids + p);
        bed_run(&bed, 0, &alone);
        bed.b->ops->set_probe(bed.b, NULL);
        assert_true(seen > 0);
        same(&bed, 0, 0, want, "step by step");
        for (uint32_t n = 1; n <= 16; n += 5) {
            struct backend_job best = rows_job(t[0].seq, p, n, t[0].ids + p);
            best.best_only = true;
            bed_run(&bed, 0, &best);
            for (uint32_t r = 0; r < n && r < 4; r++)
                assert_int_equal(ops->best(bed.b, 0, r), argmax(want + r * vocab, vocab));
        }
        compare_candidates(&bed, &t[0], p, want);
        struct backend_job jobs[LANES];
        for (uint32_t i = 0; i < LANES; i++) jobs[i] = rows_job(t[i].seq, p, 1 + i, t[i].ids + p);
        bed_run_together(&bed, jobs, LANES);
        same(&bed, 0, 0, want, "beside other lanes");
        const backend_seq copy = bed_fork(&bed, t[0].seq, p, LENGTH);
        const struct backend_job copied = rows_job(copy, p, 1, t[0].ids + p);
        bed_run(&bed, 1, &copied);
        same(&bed, 1, 0, want, "in a copied sequence");
        bed.b->ops->seq_close(bed.b, copy);
        for (uint32_t i = 0; i < LANES; i++) bed.b->ops->seq_close(bed.b, t[i].seq);
    }
    free(want);
    bed_close(&bed);
}

/* Large jobs have other arithmetic, but not other results: a prompt in jobs of 48 rows and in jobs of 16,
 * below and beyond the model's top-k. */
static void test_prefill(void **state)
{
    (void)state;
    struct bed bed;
    bed_open(&bed, ops, &duckling, 1, CHUNK);
    const size_t vocab = bed.model.config.vocab_size;
    for (size_t k = 0; k < sizeof starts / sizeof starts[0]; k++) {
        struct text t;
        make_text(&bed, &t, 7, starts[k]);
        const backend_seq other = bed_seq(&bed, LENGTH);
        bed_prefill(&bed, other, t.ids, starts[k], 16);
        float *want = malloc(vocab * sizeof *want);
        struct backend_job job = rows_job(other, starts[k], 1, t.ids + starts[k]);
        bed_run(&bed, 0, &job);
        memcpy(want, ops->logits(bed.b, 0, 0), vocab * sizeof *want);
        job.seq = t.seq;
        bed_run(&bed, 0, &job);
        const double e = relative_l2(ops->logits(bed.b, 0, 0), want, vocab);
        print_message("after %u positions: large jobs beside small ones, relative L2 %.2e\n", starts[k], e);
        if (!(e <= 1e-2)) fail_msg("after %u positions: %.2e", starts[k], e);
        free(want);
        ops->seq_close(bed.b, other);
        ops->seq_close(bed.b, t.seq);
    }
    bed_close(&bed);
}

/* A job dropped at any of its steps, or before the first, leaves a lane that works. */
static void test_cancel(void **state)
{
    (void)state;
    struct bed bed;
    struct error err = {""};
    struct text t;
    bed_open(&bed, ops, &duckling, 1, CHUNK);
    const size_t vocab = bed.model.config.vocab_size;
    make_text(&bed, &t, 1, 40);
    const struct backend_job job = {
        .kind = BACKEND_MAIN, .seq = t.seq, .position = 40, .tokens = 1, .ids = t.ids + 40, .logits_from = 0};
    bed_run(&bed, 0, &job);
    float *want = malloc(vocab * sizeof *want);
    memcpy(want, bed.b->ops->logits(bed.b, 0, 0), vocab * sizeof *want);
    for (uint32_t steps = 0; steps < 4; steps++) {
        for (uint32_t rows = 1; rows <= 34; rows += 33) {
            const struct backend_job dropped = rows_job(t.seq, 40, rows, t.ids + 40);
            if (ops->start(bed.b, 0, &dropped, &err)) fail_msg("%s", err.text);
            for (uint32_t done = 0; done < steps;) {
                struct mlp_step step;
                const enum backend_event e = ops->poll(bed.b, 0, &step, &err);
                assert_true(e == BACKEND_BUSY || e == BACKEND_MLP);
                if (e != BACKEND_MLP) continue;
                feed_forward_answer(bed.mlp, &step);
                ops->resume(bed.b, 0);
                done++;
            }
            ops->cancel(bed.b, 0);
            bed_run(&bed, 0, &job);
            same(&bed, 0, 0, want, "after a dropped job");
        }
    }
    free(want);
    bed_close(&bed);
}

/* Polls a lane until it publishes or is done, and answers. */
static bool next_step(struct bed *bed, uint32_t lane)
{
    struct error err = {""};
    struct mlp_step step;
    enum backend_event e;
    while ((e = ops->poll(bed->b, lane, &step, &err)) == BACKEND_BUSY) {
    }
    if (e == BACKEND_FAILED) fail_msg("%s", err.text);
    if (e == BACKEND_DONE) return false;
    feed_forward_answer(bed->mlp, &step);
    ops->resume(bed->b, lane);
    return true;
}

/* Two neighbouring positions on two lanes: a lane that is not polled must not enter a layer, whatever time
 * passes. */
static void test_followers(void **state)
{
    (void)state;
    struct bed bed;
    struct error err = {""};
    bed_open(&bed, ops, &duckling, 2, CHUNK);
    const size_t vocab = bed.model.config.vocab_size;
    float *want = malloc(2 * vocab * sizeof *want);
    struct text alone, together;
    const uint32_t p = 300;
    make_text(&bed, &alone, 3, p);
    make_text(&bed, &together, 3, p);
    for (uint32_t r = 0; r < 2; r++) {
        const struct backend_job job = rows_job(alone.seq, p + r, 1, alone.ids + p + r);
        bed_run(&bed, 0, &job);
        memcpy(want + r * vocab, ops->logits(bed.b, 0, 0), vocab * sizeof *want);
    }
    for (uint32_t r = 0; r < 2; r++) {
        const struct backend_job job = rows_job(together.seq, p + r, 1, together.ids + p + r);
        if (ops->start(bed.b, r, &job, &err)) fail_msg("%s", err.text);
    }
    const struct timespec pause = {.tv_nsec = 5000000};
    for (bool first = true, second = true; first || second;) {
        nanosleep(&pause, NULL); // long enough for a lane that did not wait to have gone ahead
        if (first) first = next_step(&bed, 0);
        nanosleep(&pause, NULL);
        if (second) second = next_step(&bed, 1);
    }
    same(&bed, 0, 0, want, "the position before");
    same(&bed, 1, 0, want + vocab, "the position behind");
    free(want);
    bed_close(&bed);
}

static void test_refusals(void **state)
{
    (void)state;
    struct bed bed;
    struct error err = {""};
    bed_open(&bed, ops, &duckling, 1, CHUNK);
    const backend_seq seq = bed_seq(&bed, 100);
    const int32_t ids[64] = {1}, bad[1] = {6400}, negative[1] = {-1};
    const struct {
        struct backend_job job;
        const char *message;
    } refused[] = {{rows_job(seq, 100, 1, ids), "positions 100 to 101 of a sequence with 100"},
                   {rows_job(seq, 0, CHUNK + 1, ids), "a job of 49 rows, the backend takes 1 to 48"},
                   {rows_job(seq, 0, 0, ids), "a job of 0 rows, the backend takes 1 to 48"},
                   {rows_job(seq, 0, 1, bad), "token 6400, the vocabulary has 6400"},
                   {rows_job(seq, 0, 1, negative), "token -1, the vocabulary has 6400"}};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        assert_true(ops->start(bed.b, 0, &refused[i].job, &err) < 0);
        assert_string_equal(err.text, refused[i].message);
    }
    backend_seq other;
    assert_true(ops->seq_open(bed.b, &other, 4097, &err) < 0);
    assert_string_equal(err.text, "a sequence of 4097 positions, the model has 4096");
    bed_close(&bed);
}

int main(void)
{
    ops = bed_backend();
    if (!ops) return BED_SKIPPED;
    enum { CASES = BED_CASES };
    struct CMUnitTest tests[CASES + 4];
    for (size_t i = 0; i < CASES; i++)
        tests[i] =
            (struct CMUnitTest){bed_cases[i].dir, test_exact, NULL, NULL, (void *)(uintptr_t)&bed_cases[i]};
    tests[CASES] = (struct CMUnitTest){"cancel", test_cancel, NULL, NULL, NULL};
    tests[CASES + 1] = (struct CMUnitTest){"refusals", test_refusals, NULL, NULL, NULL};
    tests[CASES + 2] = (struct CMUnitTest){"followers", test_followers, NULL, NULL, NULL};
    tests[CASES + 3] = (struct CMUnitTest){"prefill", test_prefill, NULL, NULL, NULL};
    return _cmocka_run_group_tests("cuda-exact", tests, CASES + 4, NULL, NULL) != 0;
}
