/* window_test.c: an MTP layer whose keys begin in the middle of the text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/backend/harness.h"
#include "tests/backend/random.h"

#define V32 SOURCE_DIR "/tests/goldens/v32-tiny"
#define TOKENS 120u

/* Logits of MTP rows [from, TOKENS) whose keys begin at `first`, after the main model's rows, of which those
 * before `hidden` leave no hidden state. */
static float *mtp_logits(struct house *h, const int32_t *ids, uint32_t hidden, uint32_t first, uint32_t from)
{
    const struct backend_ops *ops = h->backend->ops;
    size_t vocab = h->model.config.vocab_size;
    backend_seq seq = house_seq(h, TOKENS);
    struct backend_job job = {.kind = BACKEND_MAIN,
                              .seq = seq,
                              .tokens = TOKENS - 1,
                              .ids = ids,
                              .logits_from = TOKENS - 1,
                              .hidden_from = hidden};
    house_run(h, 0, &job);
    uint32_t rows = TOKENS - 1 - from;
    float *logits = malloc(rows * vocab * sizeof *logits);
    job = (struct backend_job){
        .kind = BACKEND_MTP, .seq = seq, .ids = ids + 1, .tokens = from, .logits_from = from};
    if (hidden == 0) house_run(h, 0, &job); // all keys, whoever looks at them
    job.position = hidden == 0 ? from : first;
    job.ids = ids + job.position + 1;
    job.tokens = TOKENS - 1 - job.position;
    job.logits_from = from - job.position;
    job.first_key = first;
    house_run(h, 0, &job);
    for (uint32_t i = 0; i < rows; i++)
        memcpy(logits + i * vocab, ops->logits(h->backend, 0, job.logits_from + i), vocab * sizeof *logits);
    ops->seq_close(h->backend, seq);
    return logits;
}

static void keys_before_the_first_are_not_seen(void **state)
{
    (void)state;
    static const enum kv_dtype kinds[] = {KV_F32, KV_BF16, KV_FP8};
    for (size_t k = 0; k < 3; k++) {
        struct house h;
        int32_t ids[TOKENS];
        uint64_t seed = 5;
        house_open(&h, V32, 1, TOKENS, kinds[k], true); // selects 64 of the positions
        for (uint32_t i = 0; i < TOKENS; i++)
            ids[i] = (int32_t)(random_word(&seed) % h.model.config.vocab_size);
        // dense and, further from the end, selecting
        for (uint32_t first = 8; first <= 112; first += 48) {
            uint32_t from = first + 3 < TOKENS - 2 ? first + 3 : TOKENS - 2;
            size_t bytes = (TOKENS - 1 - from) * h.model.config.vocab_size * sizeof(float);
            float *there = mtp_logits(&h, ids, 0, first, from), *all = mtp_logits(&h, ids, 0, 0, from);
            float *never = mtp_logits(&h, ids, first, first, from);
            assert_memory_equal(there, never, bytes);
            assert_memory_not_equal(there, all, bytes);
            free(there);
            free(all);
            free(never);
        }
        house_close(&h);
    }
}

static void what_was_left_out_is_refused(void **state)
{
    (void)state;
    struct house h;
    int32_t ids[TOKENS] = {0};
    house_open(&h, V32, 1, TOKENS, KV_F32, true);
    backend_seq seq = house_seq(&h, TOKENS);
    struct backend_job job = {
        .kind = BACKEND_MAIN, .seq = seq, .tokens = 100, .ids = ids, .logits_from = 100, .hidden_from = 40};
    house_run(&h, 0, &job);
    const struct {
        uint32_t position, first_key;
        const char *says;
    } bad[] = {{39, 32, "position 39"}, {40, 44, "44"}, {44, 41, "41"}, {48, 56, "56"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct error err = {""};
        job = (struct backend_job){.kind = BACKEND_MTP,
                                   .seq = seq,
                                   .position = bad[i].position,
                                   .tokens = 1,
                                   .ids = ids,
                                   .first_key = bad[i].first_key};
        assert_true(h.backend->ops->start(h.backend, 0, &job, &err) < 0);
        if (!strstr(err.text, bad[i].says)) fail_msg("'%s' does not say '%s'", err.text, bad[i].says);
    }
    house_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_before_the_first_are_not_seen),
        cmocka_unit_test(what_was_left_out_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
