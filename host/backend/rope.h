/* rope.h: rotary positions with YaRN, in both conventions of DeepSeek-V3.2.
 *
 * Both backends take frequencies, amplitude and scale from here: at position 100,000 one bit of a frequency
 * is 0.006 of an angle. Frequencies are made once from the config; cosines and sines of a position when a job
 * starts. MLA rotates interleaved pairs (x0,x1),(x2,x3),...; the indexer rotates half-split pairs
 * (x0,x[d/2]),... */
#ifndef DUCKD_HOST_BACKEND_ROPE_H
#define DUCKD_HOST_BACKEND_ROPE_H

#include <stddef.h>
#include <stdint.h>

#include "host/model/config.h"

#define ROPE_MAX_PAIRS 512 // config.h allows qk_rope_dim up to 1024

struct rope {
    size_t pairs; // qk_rope_dim / 2
    float inverse_frequency[ROPE_MAX_PAIRS];
    float amplitude; // of cosines and sines: mscale ratio, 1 for all published models
};

void rope_init(struct rope *r, const struct model_config *c);
float rope_softmax_scale(const struct model_config *c); // qk dim^-0.5 x mscale^2

/* cos, sin: (pairs) */
void rope_position(const struct rope *r, uint32_t position, float *cosines, float *sines);

/* x (2 x pairs) -> y, which may be x. */
void rope_interleaved(const float *x, const float *cosines, const float *sines, size_t pairs, float *y);
void rope_half_split(float *x, const float *cosines, const float *sines, size_t pairs);

#endif
