/* sampler.c: adjusts the logits, then either takes the largest or draws from a prefix of the ordered
 * candidates.
 *
 * Top-k, top-p and min-p each keep a prefix of the candidates in descending order, so all three together
 * keep the shortest of the prefixes. The order is made lazily: a heap over the vocabulary, built in
 * linear time, from which only the kept prefix is taken. Without any of them the draw walks the ids.
 *
 * Where a backend hands over its largest logits alone, they are that order's beginning. The mass of all ids
 * is then known but for a rounding error: a choice that this error or an id beyond could change is not made.
 */
#include "host/engine/sampler.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "host/backend/largest.h"
#include "host/engine/rng.h"

struct candidate {
    float logit, weight; // weight = exp((logit - largest) / temperature)
    int32_t id;
};

struct sampler {
    uint32_t vocab;
    struct sampling s;
    struct logit_bias *bias;
    float *adjusted;        // (vocab)
    struct candidate *heap; // (vocab)
    uint32_t *count;        // (vocab) how often an id was generated
    int32_t *seen;          // (seen_count) distinct generated ids
    size_t seen_count;
    bool adjusts, truncates;
};

int sampling_check(const struct sampling *s, uint32_t vocab, struct error *err)
{
    const struct {
        const char *name;
        float value, low, high;
    } range[] = {
        {"temperature", s->temperature, 0.0f, INFINITY},
        {"top_p", s->top_p, 0.0f, 1.0f},
        {"min_p", s->min_p, 0.0f, 1.0f},
        {"frequency_penalty", s->frequency_penalty, -INFINITY, INFINITY},
        {"presence_penalty", s->presence_penalty, -INFINITY, INFINITY},
    };
    for (size_t i = 0; i < sizeof range / sizeof *range; i++)
        if (!isfinite(range[i].value) || range[i].value < range[i].low || range[i].value > range[i].high)
            return error_set(err, -EINVAL, "%s is %g; it can be %g to %g", range[i].name,
                             (double)range[i].value, (double)range[i].low, (double)range[i].high);
    if (!isfinite(s->repetition_penalty) || s->repetition_penalty <= 0.0f)
        return error_set(err, -EINVAL, "repetition_penalty is %g; it must be greater than 0",
                         (double)s->repetition_penalty);
    if (s->top_k < 0) return error_set(err, -EINVAL, "top_k is %d; it can be 0 (off) or more", s->top_k);
    for (size_t i = 0; i < s->bias_count; i++) {
        if (s->bias[i].id < 0 || (uint32_t)s->bias[i].id >= vocab)
            return error_set(err, -EINVAL, "logit bias on token %d; the vocabulary has %u", s->bias[i].id,
                             vocab);
        if (!isfinite(s->bias[i].bias))
            return error_set(err, -EINVAL, "logit bias of token %d is not a finite number", s->bias[i].id);
    }
    return 0;
}

struct sampler *sampler_open(uint32_t vocab, const struct sampling *s)
{
    struct sampler *out = calloc(1, sizeof *out);
    if (!out) return NULL;
    out->vocab = vocab;
    out->s = *s;
    out->adjusts = s->bias_count || s->frequency_penalty != 0.0f || s->presence_penalty != 0.0f ||
                   s->repetition_penalty != 1.0f;
    out->truncates = (s->top_k > 0 && (uint32_t)s->top_k < vocab) || s->top_p < 1.0f || s->min_p > 0.0f;
    out->bias = calloc(s->bias_count + 1, sizeof *out->bias);
    out->adjusted = calloc(vocab, sizeof *out->adjusted);
    out->heap = calloc(vocab, sizeof *out->heap);
    out->count = calloc(vocab, sizeof *out->count);
    out->seen = calloc(vocab, sizeof *out->seen);
    if (!out->bias || !out->adjusted || !out->heap || !out->count || !out->seen) {
        sampler_close(out);
        return NULL;
    }
    if (s->bias_count) memcpy(out->bias, s->bias, s->bias_count * sizeof *s->bias);
    out->s.bias = out->bias;
    return out;
}

bool sampler_takes_candidates(const struct sampler *s)
{
    if (s->adjusts || s->s.top_k >= (int32_t)BACKEND_CANDIDATES) return false;
    return s->truncates || s->s.temperature <= 0.0f;
}

float sampler_temperature(const struct sampler *s)
{
    return s->s.temperature;
}

bool sampler_takes_largest(const struct sampler *s)
{
    return !s->adjusts && s->s.temperature <= 0.0f;
}

void sampler_close(struct sampler *s)
{
    if (!s) return;
    free(s->bias);
    free(s->adjusted);
    free(s->heap);
    free(s->count);
    free(s->seen);
    free(s);
}

void sampler_accept(struct sampler *s, int32_t id)
{
    if (s->count[id]++ == 0) s->seen[s->seen_count++] = id;
}

/* Bias and penalties. Returns the logits to choose from: the caller's own where nothing changes. */
static const float *adjust(struct sampler *s, const float *logits)
{
    if (!s->adjusts) return logits;
    float *a = s->adjusted;
    memcpy(a, logits, s->vocab * sizeof *a);
    for (size_t i = 0; i < s->s.bias_count; i++) a[s->bias[i].id] += s->bias[i].bias;
    for (size_t i = 0; i < s->seen_count; i++) {
        float *l = &a[s->seen[i]];
        *l = *l > 0.0f ? *l / s->s.repetition_penalty : *l * s->s.repetition_penalty;
        *l -= s->s.frequency_penalty * (float)s->count[s->seen[i]] + s->s.presence_penalty;
    }
    return a;
}

static bool before(const struct candidate *a, const struct candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static void sift_down(struct candidate *heap, size_t count, size_t i)
{
    struct candidate moved = heap[i];
    for (size_t child; (child = 2 * i + 1) < count; i = child) {
        if (child + 1 < count && before(&heap[child + 1], &heap[child])) child++;
        if (!before(&heap[child], &moved)) break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

/* Moves the best of heap[0, count) to heap[count - 1]: the ordered prefix grows down from the end. */
static struct candidate *take_best(struct candidate *heap, size_t count)
{
    struct candidate best = heap[0];
    heap[0] = heap[count - 1];
    heap[count - 1] = best;
    sift_down(heap, count - 1, 0);
    return &heap[count - 1];
}

/* Candidates in descending order lie at heap[count - 1] and below; `taken` of them are there, the others
 * still in the heap. Not `all`: there are more beyond them, which weigh at most what the last one does. least
 * and most: bounds of the mass of all of them, which top_p is a share of. */
struct order {
    size_t count, taken;
    bool all;
    double least, most;
};

static const struct candidate *candidate_at(struct sampler *s, struct order *o, size_t i)
{
    for (; o->taken <= i; o->taken++) take_best(s->heap, o->count - o->taken);
    return &s->heap[o->count - 1 - i];
}

/* -1: what is known does not decide it. */
static int32_t draw_ordered(struct sampler *s, struct order *o, double u)
{
    size_t keep = o->count;
    if (s->s.top_k > 0 && (size_t)s->s.top_k < o->count) {
        keep = (size_t)s->s.top_k;
        o->least = 0.0;
        for (size_t i = 0; i < keep; i++) o->least += (double)candidate_at(s, o, i)->weight;
        o->most = o->least;
    }
    const bool share = s->s.top_p < 1.0f;
    const double least = share ? (double)s->s.top_p * o->least : INFINITY,
                 most = share ? (double)s->s.top_p * o->most : INFINITY;
    double kept = 0.0;
    size_t n = 0;
    while (n < keep && (n == 0 || kept < most)) {
        if (n > 0 && kept >= least) return -1;
        const struct candidate *c = candidate_at(s, o, n);
        if (n > 0 && c->weight < s->s.min_p) break; // the largest weight is 1
        kept += (double)c->weight;
        n++;
    }
    if (n == o->count && !o->all && kept < most) return -1;
    double left = u * kept;
    for (size_t i = 0; i < n; i++) {
        left -= (double)s->heap[o->count - 1 - i].weight;
        if (left < 0.0) return s->heap[o->count - 1 - i].id;
    }
    return s->heap[o->count - n].id; // rounding left a crumb: the last one kept
}

/* Of a logit that is not the largest; below the smallest normal float there is none. scale: 1 / temperature.
 */
static float weight_of(float logit, float largest, double scale)
{
    double e = ((double)logit - (double)largest) * scale;
    return e < -87.0 ? 0.0f : expf((float)e);
}

int32_t sampler_sample(struct sampler *s, const float *logits, uint64_t position)
{
    const float *l = adjust(s, logits);
    int32_t best = largest_logit(l, s->vocab);
    if (best < 0 || s->s.temperature <= 0.0f) return best;

    double scale = 1.0 / (double)s->s.temperature, mass = 0.0;
    size_t count = 0;
    for (uint32_t i = 0; i < s->vocab; i++) {
        float w = i == (uint32_t)best ? 1.0f : weight_of(l[i], l[best], scale);
        if (w == 0.0f) continue;
        s->heap[count++] = (struct candidate){l[i], w, (int32_t)i};
        mass += (double)w;
    }
    double u = rng_uniform(s->s.seed, position);
    if (s->truncates) {
        for (size_t i = count / 2; i-- > 0;) sift_down(s->heap, count, i);
        return draw_ordered(s, &(struct order){.count = count, .all = true, .least = mass, .most = mass}, u);
    }
    double left = u * mass;
    for (size_t i = 0; i < count; i++) {
        left -= (double)s->heap[i].weight;
        if (left < 0.0) return s->heap[i].id;
    }
    return s->heap[count - 1].id;
}

static int by_id(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* The mass as sampler_sample() has it, ids in their order; the heap holds all ids that weigh anything. */
static double exact_mass(struct sampler *s, size_t count)
{
    struct candidate sorted[BACKEND_CANDIDATES];
    double mass = 0.0;
    memcpy(sorted, s->heap, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_id);
    for (size_t i = 0; i < count; i++) mass += (double)sorted[i].weight;
    return mass;
}

bool sampler_choose(struct sampler *s, const struct backend_candidates *c, uint64_t position, int32_t *id)
{
    const float top = c->logit[0];
    const double scale = 1.0 / (double)s->s.temperature;
    *id = isfinite(top) ? c->id[0] : -1;
    if (*id < 0 || s->s.temperature <= 0.0f) return true;
    size_t count = 1;
    while (count < c->count && weight_of(c->logit[count], top, scale) > 0.0f) count++;
    struct order o = {.count = count, .taken = count, .all = count < c->count || c->count == s->vocab};
    if (!sampler_takes_candidates(s) || (!o.all && s->s.top_k >= (int32_t)count)) return false;
    for (size_t i = 0; i < count; i++)
        s->heap[count - 1 - i] =
            (struct candidate){c->logit[i], i == 0 ? 1.0f : weight_of(c->logit[i], top, scale), c->id[i]};
    // Weights are floats of a rounded exponent: |e| x 2^-25, and what is beyond e = -32 is no part of any
    // mass.
    const double slack = 0x1p-19;
    o.least = o.all ? exact_mass(s, count) : c->tempered * (1.0 - slack);
    o.most = o.all ? o.least : c->tempered * (1.0 + slack);
    *id = draw_ordered(s, &o, rng_uniform(s->s.seed, position));
    return *id >= 0;
}
