/* distribution_test.c: MTP leaves the distribution of sampled tokens as it is: 20,000 seeds at temperature
 * 0.8 against the exact distribution, which the hash model's small vocabulary lets us sum up. Seeds are
 * fixed, so the test gives the same answer every time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

#define DRAWS 20000
#define PROMPT 3
#define TOKENS 4

static const int32_t prompt[PROMPT] = {5, 11, 2};

/* Of the second token (it is compared with a draft) and of the third (it may come from the draft's row). */
struct exact {
    double second[FAKE_VOCAB], third[FAKE_VOCAB];
};

static void probabilities(const int32_t *ids, uint32_t count, double temperature, double *p)
{
    float logits[FAKE_VOCAB];
    double sum = 0;
    fake_reference(ids, count, logits, NULL);
    for (int v = 0; v < FAKE_VOCAB; v++) sum += p[v] = exp((double)logits[v] / temperature);
    for (int v = 0; v < FAKE_VOCAB; v++) p[v] /= sum;
}

static struct exact sum_up(double temperature)
{
    struct exact e = {{0}, {0}};
    int32_t ids[PROMPT + 2];
    double a[FAKE_VOCAB], b[FAKE_VOCAB], c[FAKE_VOCAB];
    memcpy(ids, prompt, sizeof prompt);
    probabilities(ids, PROMPT, temperature, a);
    for (int i = 0; i < FAKE_VOCAB; i++) {
        ids[PROMPT] = i;
        probabilities(ids, PROMPT + 1, temperature, b);
        for (int j = 0; j < FAKE_VOCAB; j++) {
            e.second[j] += a[i] * b[j];
            ids[PROMPT + 1] = j;
            probabilities(ids, PROMPT + 2, temperature, c);
            for (int k = 0; k < FAKE_VOCAB; k++) e.third[k] += a[i] * b[j] * c[k];
        }
    }
    return e;
}

struct counts {
    uint32_t second[FAKE_VOCAB], third[FAKE_VOCAB], accepted, draws;
};

static bool count_token(void *ctx, const struct generated *t)
{
    struct counts *c = ctx;
    if (t->index == 1) c->second[t->id]++;
    if (t->index == 2) {
        c->third[t->id]++;
        c->accepted += t->accepted;
        c->draws++;
    }
    return true;
}

static struct counts draw(bool mtp, enum mtp_verify verify)
{
    struct counts c = {{0}, {0}, 0, 0};
    struct error err;
    struct engine *e;
    struct fake *fake = fake_open();
    fake->slow = 0;
    fake->two_lanes = verify == MTP_TWO_LANES;
    const struct flock_seam seam = fake_flock(fake);
    const struct engine_settings set = {
        .lanes = 2, .prefill_chunk = 8, .step_timeout_ms = 5000, .mtp = mtp, .verify = verify};
    assert_int_equal(engine__assemble(&e, &fake->model, &fake->backend, &seam, &set, &err), 0);
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        struct generation_request r = {.prompt = prompt,
                                       .prompt_count = PROMPT,
                                       .max_tokens = TOKENS,
                                       .ignore_eos = true,
                                       .sampling = SAMPLING_GREEDY,
                                       .on_token = count_token,
                                       .ctx = &c};
        struct generation *g;
        r.sampling.temperature = 0.8f;
        r.sampling.seed = seed;
        assert_int_equal(engine_start(e, &g, &r, &err), 0);
        while (engine_step(e)) {
        }
        assert_int_equal(generation_result(g)->reason, FINISH_LENGTH);
        generation_free(g);
    }
    engine_close(e);
    free(fake);
    assert_int_equal(c.draws, DRAWS);
    return c;
}

/* How many standard deviations Pearson's statistic lies above its mean, by Wilson and Hilferty's cube root.
 * Tokens that are expected less than five times count as one. */
static double surprise(const uint32_t *seen, const double *p)
{
    double chi = 0, rare_seen = 0, rare = 0, cells = 0;
    for (int v = 0; v < FAKE_VOCAB; v++) {
        double expected = p[v] * DRAWS;
        if (expected < 5) {
            rare += expected;
            rare_seen += seen[v];
            continue;
        }
        chi += (seen[v] - expected) * (seen[v] - expected) / expected;
        cells++;
    }
    if (rare > 0) {
        chi += (rare_seen - rare) * (rare_seen - rare) / rare;
        cells++;
    }
    double k = cells - 1;
    return (cbrt(chi / k) - (1 - 2 / (9 * k))) / sqrt(2 / (9 * k));
}

static const struct {
    const char *name;
    bool mtp;
    enum mtp_verify verify;
} modes[] = {{"without MTP", false, MTP_ONE_JOB},
             {"MTP, one job of two rows", true, MTP_ONE_JOB},
             {"MTP, two lanes", true, MTP_TWO_LANES}};

static void drafts_do_not_change_the_distribution(void **state)
{
    (void)state;
    struct exact right = sum_up(0.8), wrong = sum_up(0.9);
    for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++) {
        struct counts c = draw(modes[m].mtp, modes[m].verify);
        double second = surprise(c.second, right.second), third = surprise(c.third, right.third);
        if (second > 3.5 || third > 3.5)
            print_error("%s: %.2f and %.2f standard deviations off\n", modes[m].name, second, third);
        assert_true(second < 3.5 && third < 3.5);
        // The test would notice: the same draws do not pass for those of temperature 0.9.
        assert_true(surprise(c.second, wrong.second) > 5);
        // Both ways were taken.
        if (modes[m].mtp) assert_true(c.accepted > DRAWS / 20 && c.accepted < DRAWS - DRAWS / 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(drafts_do_not_change_the_distribution)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
