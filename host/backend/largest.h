/* largest.h: which token logits like best, said once for backends and samplers. */
#ifndef DUCKD_HOST_BACKEND_LARGEST_H
#define DUCKD_HOST_BACKEND_LARGEST_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* Of equal ones the lowest id. -1: there is a NaN or +Inf, or nothing but -Inf. */
static inline int32_t largest_logit(const float *logits, uint32_t vocab)
{
    int32_t best = -1;
    float top = -INFINITY;
    bool nan = false;
    for (uint32_t i = 0; i < vocab; i++) {
        nan |= isnan(logits[i]);
        if (logits[i] > top) {
            top = logits[i];
            best = (int32_t)i;
        }
    }
    return nan || top == INFINITY ? -1 : best;
}

#endif
