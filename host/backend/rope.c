/* rope.c: angles are fp32 products position x frequency, as the published model computes them; their
 * cosines are taken in double so that they are right to the last bit of fp32. */
#include "host/backend/rope.h"

#include <math.h>

static double mscale(double factor, double m)
{
    return factor > 1.0 ? 0.1 * m * log(factor) + 1.0 : 1.0;
}

/* The (fractional) pair whose wave makes `rotations` turns within the original context. */
static double yarn_pair(const struct model_config *c, double rotations)
{
    return c->qk_rope_dim * log(c->yarn_original_positions / (rotations * 2.0 * M_PI)) /
           (2.0 * log((double)c->rope_theta));
}

void rope_init(struct rope *r, const struct model_config *c)
{
    r->pairs = c->qk_rope_dim / 2;
    r->amplitude = 1.0f;
    for (size_t i = 0; i < r->pairs; i++) {
        float exponent = (float)(2 * i) / (float)c->qk_rope_dim;
        r->inverse_frequency[i] = 1.0f / (float)pow((double)c->rope_theta, (double)exponent);
    }
    if (!c->yarn) return;

    double low = fmax(floor(yarn_pair(c, (double)c->yarn_beta_fast)), 0.0);
    double high = fmin(ceil(yarn_pair(c, (double)c->yarn_beta_slow)), (double)c->qk_rope_dim - 1.0);
    if (low == high) high += 0.001;
    for (size_t i = 0; i < r->pairs; i++) {
        double ramp = fmin(fmax(((double)i - low) / (high - low), 0.0), 1.0);
        double f = (double)r->inverse_frequency[i];
        r->inverse_frequency[i] = (float)(f / (double)c->yarn_factor * ramp + f * (1.0 - ramp));
    }
    r->amplitude = (float)(mscale((double)c->yarn_factor, (double)c->yarn_mscale) /
                           mscale((double)c->yarn_factor, (double)c->yarn_mscale_all_dim));
}

float rope_softmax_scale(const struct model_config *c)
{
    double scale = 1.0 / sqrt((double)(c->qk_nope_dim + c->qk_rope_dim));
    if (c->yarn && c->yarn_mscale_all_dim != 0.0f) {
        double m = mscale((double)c->yarn_factor, (double)c->yarn_mscale_all_dim);
        scale *= m * m;
    }
    return (float)scale;
}

void rope_position(const struct rope *r, uint32_t position, float *cosines, float *sines)
{
    for (size_t i = 0; i < r->pairs; i++) {
        double s, c;
        sincos((double)((float)position * r->inverse_frequency[i]), &s, &c);
        cosines[i] = (float)c * r->amplitude;
        sines[i] = (float)s * r->amplitude;
    }
}

void rope_interleaved(const float *x, const float *cosines, const float *sines, size_t pairs, float *y)
{
    for (size_t i = 0; i < pairs; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        y[2 * i] = a * cosines[i] - b * sines[i];
        y[2 * i + 1] = b * cosines[i] + a * sines[i];
    }
}

void rope_half_split(float *x, const float *cosines, const float *sines, size_t pairs)
{
    for (size_t i = 0; i < pairs; i++) {
        float a = x[i], b = x[pairs + i];
        x[i] = a * cosines[i] - b * sines[i];
        x[pairs + i] = b * cosines[i] + a * sines[i];
    }
}
