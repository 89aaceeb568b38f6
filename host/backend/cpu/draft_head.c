/* draft_head.c: see draft_head.h. Every lane of the vectors keeps its best token; the eight of a task are
 * what is scored again. */
#include "host/backend/cpu/draft_head.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "host/backend/cpu/linear.h"
#include "host/backend/cpu/simd.h"

#define MIDDLE 8      // what a weight of 0 becomes
#define SHORT_SUMS 4u // groups of 8 inputs whose sums fit into 16 bits: 4 x 4 x 127 x 15

/* ---- loading ---- */

static float most(const float *x, size_t n)
{
    float m = 0;
    for (size_t i = 0; i < n; i++) m = fmaxf(m, fabsf(x[i]));
    return m;
}

static void load_row(const struct draft_head *d, uint32_t block, uint32_t lane, const float *row)
{
    float largest = most(row, d->inputs), scale = largest > 0 ? largest / 7.0f : 1.0f;
    uint8_t *to = d->weights + (size_t)block * DRAFT_HEAD_TOKENS * d->inputs / 2 + 4 * (size_t)lane;
    for (size_t i = 0; i < d->inputs; i++) {
        uint8_t value = (uint8_t)(MIDDLE + lrintf(row[i] / scale));
        to[i / 8 * 4 * DRAFT_HEAD_TOKENS + i % 4] |= (uint8_t)(i % 8 < 4 ? value : value << 4);
    }
    d->scales[block * DRAFT_HEAD_TOKENS + lane] = scale;
}

static void load_task(void *arg, size_t block, unsigned worker)
{
    const struct draft_head *d = arg;
    float *row = d->row + worker * d->inputs;
    for (uint32_t lane = 0; lane < DRAFT_HEAD_TOKENS; lane++) {
        uint32_t token = (uint32_t)block * DRAFT_HEAD_TOKENS + lane;
        if (token < d->tokens) weight_row(&d->exact, token, row);
        load_row(d, (uint32_t)block, lane, row);
    }
}

int draft_head_load(struct draft_head *d, const struct weight *w, struct pool *pool, struct error *err)
{
    uint32_t blocks = (uint32_t)((w->rows + DRAFT_HEAD_TOKENS - 1) / DRAFT_HEAD_TOKENS);
    size_t bytes = (size_t)blocks * DRAFT_HEAD_TOKENS * w->cols / 2;
    *d = (struct draft_head){.exact = *w, .tokens = (uint32_t)w->rows, .blocks = blocks, .inputs = w->cols};
    d->weights = aligned_alloc(64, bytes);
    d->scales = calloc((size_t)blocks * DRAFT_HEAD_TOKENS, sizeof *d->scales);
    d->rounded = calloc(d->inputs, sizeof *d->rounded);
    d->row = calloc(pool_threads(pool) * d->inputs, sizeof *d->row);
    if (!d->weights || !d->scales || !d->rounded || !d->row) {
        draft_head_free(d);
        return error_set(err, -ENOMEM, "%s: no memory for drafts", w->name);
    }
    memset(d->weights, 0, bytes);
    pool_run(pool, load_task, d, d->blocks);
    return 0;
}

void draft_head_free(struct draft_head *d)
{
    free(d->weights);
    free(d->scales);
    free(d->rounded);
    free(d->row);
    *d = (struct draft_head){0};
}

uint64_t draft_head_bytes(const struct draft_head *d)
{
    return (uint64_t)d->blocks * DRAFT_HEAD_TOKENS * (d->inputs / 2 + sizeof *d->scales);
}

/* ---- searching ---- */

static void round_x(struct draft_head *d, const float *x)
{
    float largest = most(x, d->inputs), factor = largest > 0 ? 127.0f / largest : 0;
    int32_t sum = 0;
    for (size_t i = 0; i < d->inputs; i++) {
        d->rounded[i] = (int8_t)lrintf(x[i] * factor);
        sum += d->rounded[i];
    }
    d->x = x;
    d->zero = -MIDDLE * sum;
}

static __m256i broadcast4(const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, sizeof four);
    return _mm256_set1_epi32(four);
}

/* 32 tokens' sums. */
static void block_sums(const uint8_t *weights, const int8_t *x, size_t inputs, __m256i sum[4])
{
    const __m256i low = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1);
    for (size_t i = 0, end; i < inputs; i = end) {
        __m256i part[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                           _mm256_setzero_si256()};
        end = inputs - i < 8 * SHORT_SUMS ? inputs : i + 8 * SHORT_SUMS;
        for (size_t g = i; g < end; g += 8, weights += 4 * DRAFT_HEAD_TOKENS) {
            const __m256i first = broadcast4(x + g), second = broadcast4(x + g + 4);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                __m256i w = _mm256_load_si256((const __m256i *)(const void *)(weights + 32 * k));
                __m256i a = _mm256_maddubs_epi16(_mm256_and_si256(w, low), first);
                __m256i b = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(w, 4), low), second);
                part[k] = _mm256_add_epi16(part[k], _mm256_add_epi16(a, b));
            }
        }
        for (int k = 0; k < 4; k++) sum[k] = _mm256_add_epi32(sum[k], _mm256_madd_epi16(part[k], one));
    }
}

static bool better(struct draft_candidate a, struct draft_candidate than)
{
    return a.score > than.score || (a.score == than.score && a.token < than.token);
}

static struct draft_candidate score_again(const struct draft_head *d, uint32_t token, float *row)
{
    weight_row(&d->exact, token, row);
    __m256 sum = _mm256_setzero_ps();
    for (size_t i = 0; i < d->inputs; i += 8)
        sum = _mm256_fmadd_ps(_mm256_loadu_ps(row + i), _mm256_loadu_ps(d->x + i), sum);
    return (struct draft_candidate){simd_sum(sum), token};
}

static void search_task(void *arg, size_t task, unsigned worker)
{
    struct draft_head *d = arg;
    uint32_t block = (uint32_t)task * d->task_blocks, end = block + d->task_blocks;
    __m256 best = _mm256_set1_ps(-INFINITY);
    __m256i where = _mm256_setzero_si256();
    for (; block < end && block < d->blocks; block++) {
        __m256i sum[4];
        for (int k = 0; k < 4; k++) sum[k] = _mm256_set1_epi32(d->zero);
        block_sums(d->weights + (size_t)block * DRAFT_HEAD_TOKENS * d->inputs / 2, d->rounded, d->inputs,
                   sum);
        for (uint32_t k = 0; k < 4; k++) {
            uint32_t token = block * DRAFT_HEAD_TOKENS + 8 * k;
            __m256 score = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[k]), _mm256_loadu_ps(d->scales + token));
            __m256 more = _mm256_cmp_ps(score, best, _CMP_GT_OQ);
            best = _mm256_blendv_ps(best, score, more);
            where = _mm256_blendv_epi8(where, _mm256_set1_epi32((int)token), _mm256_castps_si256(more));
        }
    }
    uint32_t token[8];
    _mm256_storeu_si256((__m256i *)(void *)token, where);
    struct draft_candidate *found = &d->best[task];
    *found = (struct draft_candidate){-INFINITY, UINT32_MAX};
    for (uint32_t k = 0; k < 8; k++) {
        uint32_t id = token[k] + k < d->tokens ? token[k] + k : d->tokens - 1;
        struct draft_candidate c = score_again(d, id, d->row + worker * d->inputs);
        if (better(c, *found)) *found = c;
    }
}

int32_t draft_head_best(struct draft_head *d, const float *x, struct pool *pool)
{
    uint32_t threads = pool_threads(pool), tasks = threads == 1 ? 1 : 4 * threads;
    if (tasks > DRAFT_HEAD_TASKS) tasks = DRAFT_HEAD_TASKS;
    d->task_blocks = (d->blocks + tasks - 1) / tasks;
    tasks = (d->blocks + d->task_blocks - 1) / d->task_blocks;
    round_x(d, x);
    parallel(pool, search_task, d, tasks, (double)d->tokens * (double)d->inputs / 4);
    struct draft_candidate best = d->best[0];
    for (uint32_t i = 1; i < tasks; i++)
        if (better(d->best[i], best)) best = d->best[i];
    return (int32_t)best.token;
}
