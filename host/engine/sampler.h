/* sampler.h: logits -> token. Pure: the same logits, history, parameters and position give the same token.
 *
 * The random number of a position is a function of (seed, position) alone, so a sampled text does not depend
 * on how it was produced (MTP on or off, lanes, other requests). Order of application: logit bias, penalties,
 * temperature, top-k, top-p, min-p. Temperature 0 is greedy: the largest adjusted logit, ties to the lower
 * id. */
#ifndef DUCKD_HOST_ENGINE_SAMPLER_H
#define DUCKD_HOST_ENGINE_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host/backend/backend.h"

struct logit_bias {
    int32_t id;
    float bias;
};

struct sampling {
    float temperature;                                             // 0: greedy
    float top_p, min_p;                                            // 1 and 0: off
    int32_t top_k;                                                 // 0: off
    float frequency_penalty, presence_penalty, repetition_penalty; // 0, 0, 1: off; over generated tokens
    uint64_t seed;
    const struct logit_bias *bias; // (bias_count)
    size_t bias_count;
};
#define SAMPLING_GREEDY ((struct sampling){.top_p = 1.0f, .repetition_penalty = 1.0f})

/* What no model can serve: a value that is no number or out of its range, a bias on an id >= vocab. */
int sampling_check(const struct sampling *s, uint32_t vocab, struct error *err);

struct sampler;
struct sampler *sampler_open(uint32_t vocab,
                             const struct sampling *s); // copies *s and the biases; NULL: no memory
void sampler_close(struct sampler *s);
/* Samples for `position` (of the token to be chosen). logits[vocab] are not changed. -1: the adjusted logits
 * hold a NaN or +Inf, or nothing but -Inf. */
int32_t sampler_sample(struct sampler *s, const float *logits, uint64_t position);
/* The same from a row's largest logits (made with sampler_temperature()): true with *id as sampler_sample()
 * would have it, or false: they do not decide it, all logits must be asked. Makes sense if
 * sampler_takes_candidates(). */
bool sampler_choose(struct sampler *s, const struct backend_candidates *c, uint64_t position, int32_t *id);
/* Samples come from a few of the largest logits as they come: nothing adjusts them, and greedy choice, top-k,
 * top-p or min-p ends the choice. A draw from all ids goes by their order and needs every logit. */
bool sampler_takes_candidates(const struct sampler *s);
float sampler_temperature(const struct sampler *s);
/* Every sample is the largest of the logits as they come, so that its id is enough. */
bool sampler_takes_largest(const struct sampler *s);
/* A generated token was kept: penalties count it. */
void sampler_accept(struct sampler *s, int32_t id);

#endif
