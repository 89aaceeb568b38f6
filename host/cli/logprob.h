/* logprob.h: log-softmax in double, for figures that people compare. */
#ifndef DUCKD_HOST_CLI_LOGPROB_H
#define DUCKD_HOST_CLI_LOGPROB_H

#include <math.h>
#include <stdint.h>

/* Natural logarithm of softmax(logits)[id]. */
static inline double logprob(const float *logits, uint32_t vocab, int32_t id)
{
    float top = logits[0];
    for (uint32_t i = 1; i < vocab; i++) top = logits[i] > top ? logits[i] : top;
    double sum = 0;
    for (uint32_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - (double)top);
    return (double)logits[id] - (double)top - log(sum);
}

#endif
