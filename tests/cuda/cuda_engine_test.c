/* cuda_engine_test.c: the whole engine (lanes, MTP, a flock) on the CUDA backend gives the goldens' tokens
 * and those of the CPU backend. The flock is local or, with an argument, what it says (cuda-flock); a second
 * argument is a pattern of the tests to run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "host/engine/engine.h"
#include "tests/cuda/bed.h"
#include "tests/golden/goldens.h"

#define MODEL "models/duckling"
#define MOST 64u

static const char *const prompts[] = {"short", "hello",  "command", "think", "nothink", "name",
                                      "turns", "system", "chinese", "long",  "longer"};
enum { PROMPTS = sizeof prompts / sizeof prompts[0] };

static struct goldens *goldens;
static const char *flock = "local:3"; // of the CUDA backend

struct answer {
    int32_t ids[MOST];
    uint32_t count;
    struct generation_result result;
};

static bool on_token(void *ctx, const struct generated *token)
{
    struct answer *a = ctx;
    if (a->count < MOST) a->ids[a->count++] = token->id;
    return true;
}

static struct engine *open_engine(const char *backend, const char *ducks, enum kv_dtype kv, bool mtp)
{
    const struct engine_options o = {.model_dir = MODEL,
                                     .flock = ducks,
                                     .backend = backend,
                                     .mtp = mtp,
                                     .kv_dtype = kv,
                                     .kv_dtype_set = true};
    struct error err = {""};
    struct engine *e;
    if (engine_open(&e, &o, &err)) fail_msg("%s: %s", backend, err.text);
    return e;
}

/* All prompts at once: they wait for lanes, share them and run beside each other. */
static void answer_all(struct engine *e, struct answer *answers)
{
    struct generation *g[PROMPTS];
    struct error err = {""};
    memset(answers, 0, PROMPTS * sizeof *answers);
    for (size_t i = 0; i < PROMPTS; i++) {
        const struct golden *ids = goldens_find(goldens, "%s.ids", prompts[i]);
        const struct golden *greedy = goldens_find(goldens, "%s.greedy", prompts[i]);
        assert_non_null(ids);
        assert_non_null(greedy);
        const struct generation_request r = {.prompt = ids->i,
                                             .prompt_count = (uint32_t)ids->count,
                                             .max_tokens = (uint32_t)greedy->count,
                                             .ids_only = i % 2 == 0,
                                             .sampling = SAMPLING_GREEDY,
                                             .on_token = on_token,
                                             .ctx = &answers[i]};
        if (engine_start(e, &g[i], &r, &err)) fail_msg("%s: %s", prompts[i], err.text);
    }
    while (engine_step(e)) {
    }
    for (size_t i = 0; i < PROMPTS; i++) {
        answers[i].result = *generation_result(g[i]);
        if (answers[i].result.reason == FINISH_ERROR)
            fail_msg("%s: %s", prompts[i], answers[i].result.error.text);
        generation_free(g[i]);
    }
}

static void same_tokens(const char *what, const struct answer *got, const int32_t *want, uint32_t count,
                        const char *prompt)
{
    if (got->count == count && !memcmp(got->ids, want, count * sizeof *want)) return;
    uint32_t i = 0;
    while (i < got->count && i < count && got->ids[i] == want[i]) i++;
    fail_msg("%s, %s: token %u differs (%u tokens, %u expected)", what, prompt, i, got->count, count);
}

static void compare(enum kv_dtype kv, bool mtp)
{
    static struct answer cuda[PROMPTS], cpu[PROMPTS];
    struct engine *e = open_engine("cuda", flock, kv, mtp);
    answer_all(e, cuda);
    engine_close(e);
    e = open_engine("cpu", "local:3", kv, mtp);
    answer_all(e, cpu);
    engine_close(e);
    uint32_t proposed = 0, accepted = 0;
    for (size_t i = 0; i < PROMPTS; i++) {
        const struct golden *greedy = goldens_find(goldens, "%s.greedy", prompts[i]);
        same_tokens("CUDA and CPU", &cuda[i], cpu[i].ids, cpu[i].count, prompts[i]);
        same_tokens("CUDA and reference", &cuda[i], greedy->i, (uint32_t)greedy->count, prompts[i]);
        proposed += cuda[i].result.drafts_proposed;
        accepted += cuda[i].result.drafts_accepted;
    }
    print_message("KV %s, MTP %d: %d prompts, the same tokens; %u of %u drafts accepted\n",
                  kv == KV_F32 ? "f32" : "bf16", mtp, PROMPTS, accepted, proposed);
    if (mtp) assert_true(accepted > proposed / 2);
}

static void f32_plain(void **state)
{
    (void)state;
    compare(KV_F32, false);
}

static void f32_mtp(void **state)
{
    (void)state;
    compare(KV_F32, true);
}

static void bf16_plain(void **state)
{
    (void)state;
    compare(KV_BF16, false);
}

static void bf16_mtp(void **state)
{
    (void)state;
    compare(KV_BF16, true);
}

int main(int argc, char **argv)
{
    struct error err = {""};
    if (argc > 1) flock = argv[1];
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    if (!bed_backend()) return BED_SKIPPED;
    if (goldens_open(&goldens, "tests/goldens/duckling", &err)) {
        printf("%s\n", err.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(f32_plain), cmocka_unit_test(f32_mtp),
                                       cmocka_unit_test(bf16_plain), cmocka_unit_test(bf16_mtp)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    goldens_close(goldens);
    return failed != 0;
}
