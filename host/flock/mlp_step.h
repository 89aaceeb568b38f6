/* mlp_step.h: one feed-forward step: what a backend publishes and the flock answers.
 *
 * The only notion that backend and flock share. Pointers belong to the backend and stay valid until
 * backend_resume(). Dense layers have top_k = 0: only the always-on experts take part. */
#ifndef DUCKD_HOST_FLOCK_MLP_STEP_H
#define DUCKD_HOST_FLOCK_MLP_STEP_H

#include <stdint.h>

struct mlp_step {
    uint32_t layer;       // 0 .. layers - 1, MTP layer = layers
    uint32_t tokens;      // 1 .. backend's max_tokens
    uint32_t top_k;       // chosen experts per token; 0 in a dense layer
    const float *x;       // (tokens, hidden) normed activation
    const int32_t *ids;   // (tokens, top_k) chosen routed experts, ascending within a token
    const float *weights; // (tokens, top_k) their weights, routed_scale included
    float *y;             // (tokens, hidden) written by the flock: sum of routed experts and of the shared ones it holds
};

#endif
