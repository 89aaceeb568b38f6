/* weight.c: tensors as the model needs them: matrices with their block scales, vectors and rows as fp32. */
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "host/model/checkpoint.h"
#include "host/model/json.h"

#define SCALE_BLOCK 128u // rows and columns that share a scale
#define MAX_NAME 512     // a name that does not fit cannot be in a checkpoint either
#define SCALE_SUFFIX "_scale_inv"

#define E4M3_SIGN(c) (((c)&0x80) ? -1.0f : 1.0f)
#define E4M3_EXP(c) (((c) >> 3) & 15)
#define E4M3_MAN(c) ((float)((c)&7))
#define E4M3(c)                                                                                              \
    (((c)&0x7f) == 0x7f ? NAN                                                                                \
     : E4M3_EXP(c)      ? E4M3_SIGN(c) * (8.0f + E4M3_MAN(c)) * (float)(1 << E4M3_EXP(c)) / 1024.0f          \
                        : E4M3_SIGN(c) * E4M3_MAN(c) / 512.0f)
#define E4M3_4(c) E4M3(c), E4M3((c) + 1), E4M3((c) + 2), E4M3((c) + 3)
#define E4M3_16(c) E4M3_4(c), E4M3_4((c) + 4), E4M3_4((c) + 8), E4M3_4((c) + 12)
#define E4M3_64(c) E4M3_16(c), E4M3_16((c) + 16), E4M3_16((c) + 32), E4M3_16((c) + 48)
static const float e4m3_value[256] = {E4M3_64(0), E4M3_64(64), E4M3_64(128), E4M3_64(192)};

static float read_f32(const uint8_t *p)
{
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

static float read_bf16(const uint8_t *p)
{
    uint32_t bits = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float read_f16(const uint8_t *p)
{
    unsigned bits = (unsigned)p[0] | (unsigned)p[1] << 8;
    int exponent = bits >> 10 & 31;
    float mantissa = (float)(bits & 1023);
    float x = exponent == 31 ? (mantissa != 0.0f ? NAN : INFINITY)
              : exponent     ? ldexpf(1024.0f + mantissa, exponent - 25)
                             : ldexpf(mantissa, -24);
    return bits & 0x8000 ? -x : x;
}

static const char *file_of(const struct checkpoint *c, const struct tensor *t)
{
    return json_path_tail(checkpoint_file(c, t->file));
}

struct shape_text {
    char s[64];
};
static struct shape_text show_shape(const uint64_t *shape, uint32_t dims)
{
    struct shape_text t = {"("};
    size_t n = 1;
    for (uint32_t i = 0; i < dims && n < sizeof t.s - 24; i++)
        n += (size_t)snprintf(t.s + n, sizeof t.s - n, "%s%" PRIu64, i ? ", " : "", shape[i]);
    snprintf(t.s + n, sizeof t.s - n, ")");
    return t;
}

static int check_shape(const struct checkpoint *c, const struct tensor *t, const uint64_t *want,
                       uint32_t dims, struct error *err)
{
    bool same = t->dims == dims;
    for (uint32_t i = 0; same && i < dims; i++) same = t->shape[i] == want[i];
    if (same) return 0;
    return error_set(err, -EINVAL, "%s: tensor %s: shape is %s, the model needs %s", file_of(c, t), t->name,
                     show_shape(t->shape, t->dims).s, show_shape(want, dims).s);
}

static int find(const struct checkpoint *c, const struct tensor **out, struct error *err,
                const char *name_format, va_list args)
{
    char name[MAX_NAME];
    vsnprintf(name, sizeof name, name_format, args);
    *out = checkpoint_find(c, name);
    if (*out) return 0;
    const char *first = checkpoint_files(c) ? checkpoint_file(c, 0) : "";
    const char *slash = strrchr(first, '/');
    int dir = slash ? (int)(slash - first) : 0;
    return error_set(err, -ENOENT, "%.*s: tensor %.200s is missing (%u file%s, %zu tensors)",
                     dir > 160 ? 160 : dir, dir > 160 ? first + dir - 160 : first, name, checkpoint_files(c),
                     checkpoint_files(c) == 1 ? "" : "s", checkpoint_tensors(c));
}

/* The scales of an fp8 matrix: all there, and all numbers that make sense as a factor. */
static int find_scales(const struct checkpoint *c, struct weight *w, const struct tensor *weight,
                       struct error *err)
{
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%s" SCALE_SUFFIX, weight->name);
    const struct tensor *t = checkpoint_find(c, name);
    if (!t)
        return error_set(err, -ENOENT, "%s: tensor %s is fp8, but its scales %.200s are missing",
                         file_of(c, weight), weight->name, name);
    if (t->dtype != DTYPE_F32)
        return error_set(err, -EINVAL, "%s: tensor %s: dtype is %s, must be F32", file_of(c, t), t->name,
                         t->dtype_name);
    const uint64_t want[2] = {(w->rows + SCALE_BLOCK - 1) / SCALE_BLOCK,
                              (w->cols + SCALE_BLOCK - 1) / SCALE_BLOCK};
    int rc = check_shape(c, t, want, 2, err);
    if (rc) return rc;
    w->scales = t->data;
    for (uint64_t i = 0; i < want[0] * want[1]; i++) {
        float s = read_f32(w->scales + 4 * i);
        if (!(s > 0.0f && s <= FLT_MAX))
            return error_set(err, -EINVAL,
                             "%s: tensor %s: scale (%" PRIu64 ", %" PRIu64
                             ") is %g, must be positive and finite",
                             file_of(c, t), t->name, i / want[1], i % want[1], (double)s);
    }
    return 0;
}

int checkpoint_matrix(const struct checkpoint *c, struct weight *out, uint64_t rows, uint64_t cols,
                      struct error *err, const char *name_format, ...)
{
    const struct tensor *t;
    va_list args;
    va_start(args, name_format);
    int rc = find(c, &t, err, name_format, args);
    va_end(args);
    if (rc) return rc;
    const uint64_t want[2] = {rows, cols};
    if ((rc = check_shape(c, t, want, 2, err))) return rc;
    *out = (struct weight){.dtype = t->dtype,
                           .rows = rows,
                           .cols = cols,
                           .data = t->data,
                           .name = t->name,
                           .file = file_of(c, t)};
    if (t->dtype == DTYPE_F8_E4M3) return find_scales(c, out, t, err);
    if (t->dtype == DTYPE_BF16 || t->dtype == DTYPE_F32) return 0;
    return error_set(err, -EINVAL, "%s: tensor %s: dtype is %s, a matrix must be F8_E4M3, BF16 or F32",
                     file_of(c, t), t->name, t->dtype_name);
}

int checkpoint_vector(const struct checkpoint *c, float *out, uint64_t n, struct error *err,
                      const char *name_format, ...)
{
    const struct tensor *t;
    va_list args;
    va_start(args, name_format);
    int rc = find(c, &t, err, name_format, args);
    va_end(args);
    if (rc) return rc;
    if ((rc = check_shape(c, t, &n, 1, err))) return rc;
    const uint8_t *p = t->data;
    switch (t->dtype) {
    case DTYPE_F32:
        memcpy(out, p, n * sizeof *out);
        return 0;
    case DTYPE_BF16:
        for (uint64_t i = 0; i < n; i++) out[i] = read_bf16(p + 2 * i);
        return 0;
    case DTYPE_F16:
        for (uint64_t i = 0; i < n; i++) out[i] = read_f16(p + 2 * i);
        return 0;
    default:
        return error_set(err, -EINVAL, "%s: tensor %s: dtype is %s, a vector must be F32, BF16 or F16",
                         file_of(c, t), t->name, t->dtype_name);
    }
}

void weight_row(const struct weight *w, uint64_t row, float *out)
{
    if (w->dtype == DTYPE_F32) {
        memcpy(out, w->data + 4 * row * w->cols, w->cols * sizeof *out);
    } else if (w->dtype == DTYPE_BF16) {
        const uint8_t *p = w->data + 2 * row * w->cols;
        for (uint64_t i = 0; i < w->cols; i++) out[i] = read_bf16(p + 2 * i);
    } else {
        const uint8_t *p = w->data + row * w->cols;
        uint64_t blocks = (w->cols + SCALE_BLOCK - 1) / SCALE_BLOCK;
        const uint8_t *scales = w->scales + 4 * blocks * (row / SCALE_BLOCK);
        for (uint64_t i = 0; i < w->cols; i++)
            out[i] = e4m3_value[p[i]] * read_f32(scales + 4 * (i / SCALE_BLOCK));
    }
}
