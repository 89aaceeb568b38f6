/* router.c: sigmoid scores; the bias takes part in choosing only; groups by their two best biased scores. */
#include "host/backend/cpu/router.h"

#include <math.h>

#include "host/backend/cpu/simd.h"

static void sigmoid(float *x, size_t n)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    for (size_t i = 0; i < n; i += 8) {
        __m256 e = simd_exp(_mm256_xor_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(-0.0f)));
        _mm256_storeu_ps(x + i, _mm256_div_ps(one, _mm256_add_ps(one, e)));
    }
}

static float group_score(const float *biased, uint32_t n)
{
    float first = -INFINITY, second = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (biased[i] > first) {
            second = first;
            first = biased[i];
        } else if (biased[i] > second) {
            second = biased[i];
        }
    }
    return n > 1 ? first + second : first;
}

/* Groups that are not among the top_groups best leave the choice. */
static void mask_groups(const struct model_config *c, float *biased)
{
    uint32_t n = c->experts / c->groups;
    float *score = biased + c->experts;
    for (uint32_t g = 0; g < c->groups; g++) score[g] = group_score(biased + g * n, n);
    for (uint32_t g = 0; g < c->groups; g++) {
        uint32_t ahead = 0; // better groups, and equal ones with a lower id
        for (uint32_t o = 0; o < c->groups; o++)
            ahead += score[o] > score[g] || (score[o] == score[g] && o < g);
        if (ahead < c->top_groups) continue;
        for (uint32_t i = 0; i < n; i++) biased[g * n + i] = -INFINITY;
    }
}

bool router_choose(const struct model_config *c, float *logits, const float *bias, float *biased,
                   int32_t *ids, float *weights)
{
    for (uint32_t i = 0; i < c->experts; i++)
        if (!isfinite(logits[i])) return false;
    sigmoid(logits, c->experts);
    for (uint32_t i = 0; i < c->experts; i++) biased[i] = logits[i] + bias[i];
    if (c->groups > 1) mask_groups(c, biased);

    uint32_t k = c->top_k;
    for (uint32_t chosen = 0; chosen < k; chosen++) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < c->experts; i++)
            if (biased[i] > biased[best]) best = i;
        biased[best] = -INFINITY;
        uint32_t at = chosen;
        for (; at > 0 && ids[at - 1] > (int32_t)best; at--) ids[at] = ids[at - 1];
        ids[at] = (int32_t)best;
    }
    float sum = 0.0f;
    for (uint32_t i = 0; i < k; i++) sum += logits[ids[i]];
    float scale = c->routed_scale;
    if (c->norm_topk_prob) scale /= sum + 1e-20f;
    for (uint32_t i = 0; i < k; i++) weights[i] = logits[ids[i]] * scale;
    return true;
}
