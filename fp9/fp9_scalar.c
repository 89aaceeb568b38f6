/* fp9_scalar.c: the reference: the arithmetic of fp9.h written down as plainly as C allows.
 * Compiled with -mfma so that __builtin_fmaf is one instruction; a library fmaf() gives the same bits. */
#include "fp9/fp9_bits.h"
#include "fp9/fp9_down.h"

static float tiny_to_zero(float x)
{
    return (fp9__bits(x) & 0x7fffffffu) < fp9__bits(FP9_X_TINY) ? 0.0f : x;
}

static float raw(uint16_t code)
{
    return fp9__float((uint32_t)(code >> 8) << 31 | (uint32_t)(code & 0xff) << 20);
}

static float exp_minus(float a) // 0 <= a <= FP9__SILU_CUT
{
    float shifted = __builtin_fmaf(a, -FP9__LOG2E, FP9__ROUND);
    float n = shifted - FP9__ROUND;
    float r = __builtin_fmaf(n, -FP9__LN2_HIGH, -a);
    r = __builtin_fmaf(n, -FP9__LN2_LOW, r);
    float p = __builtin_fmaf(FP9__EXP7, r, FP9__EXP6);
    p = __builtin_fmaf(p, r, FP9__EXP5);
    p = __builtin_fmaf(p, r, FP9__EXP4);
    p = __builtin_fmaf(p, r, FP9__EXP3);
    p = __builtin_fmaf(p, r, FP9__EXP2);
    p = __builtin_fmaf(p, r, 1.0f);
    p = __builtin_fmaf(p, r, 1.0f);
    return fp9__float(fp9__bits(p) + (fp9__bits(shifted) << 23));
}

float fp9_silu(float x)
{
    x = tiny_to_zero(x);
    if (x != x) return x;
    float a = fp9__float(fp9__bits(x) & 0x7fffffffu);
    int beyond = a > FP9__SILU_CUT;
    float z = beyond ? 0.0f : exp_minus(a);
    float numerator = x;
    if (x < 0.0f) numerator = (beyond ? -0.0f : x) * z;
    return numerator / (1.0f + z);
}

static void prepare(const float *x, size_t n, float *xs)
{
    for (size_t i = 0; i < n; i++) xs[i] = tiny_to_zero(x[i]) * FP9_X_SCALE;
    for (size_t i = n; i % FP9_TILE_INPUTS != 0; i++) xs[i] = 0.0f;
}

/* Of a packed scale: e4m3's are for raw weights of 2^-8 the size. */
static float scale_of(enum fp9_format f, float packed)
{
    return f == FP9_E4M3 ? packed * (FP9_W_SCALE / FP9_E4M3_SCALE) : packed;
}

static float dot_one(const struct fp9_matrix *m, size_t p, unsigned lane, const float *xs, float sum)
{
    const uint8_t *panel = m->panels + p * m->panel_stride;
    size_t row = (m->first_output + 8 * p) / FP9_BLOCK - m->first_output / FP9_BLOCK;
    for (size_t block = 0; block * FP9_BLOCK < m->inputs; block++) {
        size_t end = (block + 1) * FP9_BLOCK < m->inputs ? (block + 1) * FP9_BLOCK : m->inputs;
        float blk = 0.0f;
        for (size_t i = block * FP9_BLOCK; i < end; i++)
            blk = __builtin_fmaf(raw(fp9_panel_get(m->format, panel, i, lane)), xs[i], blk);
        sum = __builtin_fmaf(scale_of(m->format, m->scales[row * m->scale_stride + block]), blk, sum);
    }
    return sum;
}

static void dot(const struct fp9_matrix *m, size_t first, size_t count, const struct fp9_rows *x, float *y,
                size_t y_stride)
{
    for (size_t t = 0; t < x->count; t++) {
        const float *xs = x->xs + (x->row ? x->row[t] : t) * x->stride;
        for (size_t p = 0; p < count; p++)
            for (unsigned lane = 0; lane < FP9_LANES; lane++) {
                float *out = &y[t * y_stride + 8 * p + lane];
                *out = dot_one(m, first + p, lane, xs, m->continues ? *out : 0.0f);
            }
    }
}

static void dot2(const struct fp9_matrix *m0, const struct fp9_matrix *m1, size_t first, size_t count,
                 const struct fp9_rows *x, float *y0, float *y1, size_t y_stride)
{
    dot(m0, first, count, x, y0, y_stride);
    dot(m1, first, count, x, y1, y_stride);
}

static void expert(const float *g, const float *u, float weight, size_t n, float *hs)
{
    for (size_t i = 0; i < n; i++) {
        float p = tiny_to_zero(fp9_silu(g[i])) * tiny_to_zero(u[i]);
        hs[i] = tiny_to_zero(tiny_to_zero(p) * tiny_to_zero(weight)) * FP9_X_SCALE;
    }
}

/* The partial sum of one slice. */
static float slice_sum(const struct fp9_down *d, size_t s, size_t p, unsigned lane, size_t token)
{
    size_t inputs = 8 * d->slices;
    float sum = 0.0f;
    for (size_t e = 0; e < d->experts; e++) {
        const struct fp9_down_expert *x = &d->expert[e];
        const uint8_t *quad = x->panels + p / FP9_QUAD * fp9_quad_bytes(d->format, inputs);
        float scale = x->scales[8 * p / FP9_BLOCK * d->scale_stride + (x->column + 8 * s) / FP9_BLOCK];
        for (size_t q = x->pair; q < (size_t)x->pair + x->pairs; q++) {
            if (d->token[q] != token) continue;
            const float *hs = d->hs + fp9_down_hs(d->pairs, q, s);
            float blk = 0.0f;
            for (size_t i = 0; i < 8; i++)
                blk = __builtin_fmaf(
                    raw(fp9_quad_get(d->format, quad, inputs, p % FP9_QUAD, 8 * s + i, lane)), hs[i], blk);
            sum = __builtin_fmaf(scale_of(d->format, scale), blk, sum);
        }
    }
    return sum;
}

static float tree_sum(const struct fp9_down *d, size_t s, unsigned level, size_t p, unsigned lane,
                      size_t token)
{
    if (level == 0) return slice_sum(d, s, p, lane, token);
    float left = tree_sum(d, s, level - 1, p, lane, token);
    return left + tree_sum(d, s + ((size_t)1 << (level - 1)), level - 1, p, lane, token);
}

static void down_rows(const struct fp9_down *d, size_t first, size_t count)
{
    size_t subtree = 0;
    for (size_t s = 0; s < d->slices; subtree++) {
        unsigned level = fp9_subtree_level(d->first_slice + s, d->slices - s);
        for (size_t t = 0; t < d->tokens; t++)
            for (size_t p = first; p < first + count; p++)
                for (unsigned lane = 0; lane < FP9_LANES; lane++)
                    d->out[subtree * d->out_subtree + t * d->out_token + 8 * p + lane] =
                        tree_sum(d, s, level, p, lane, t);
        s += (size_t)1 << level;
    }
}

/* All at once: nobody waits for the scalar kernels. */
static int down_some(const struct fp9_down *d, struct fp9_down_walk *w, size_t *work)
{
    *work = 0;
    down_rows(d, w->first, w->count);
    return 1;
}

static const struct fp9_down_ops down = {down_rows, down_some};

const struct fp9_kernels fp9_scalar = {
    .name = "scalar", .prepare = prepare, .dot = dot, .dot2 = dot2, .expert = expert, .down = &down};
