/* linear_pack.c: from checkpoint tensors to panels. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "host/backend/cpu/linear.h"

#define HUGE_PAGE ((size_t)2 << 20)
#define LARGE (4 * HUGE_PAGE) // from here on it matters that a matrix begins at a large page

static size_t align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static int allocate(struct linear *l, enum linear_kind kind, size_t outputs, size_t inputs, struct error *err)
{
    memset(l, 0, sizeof *l);
    if (inputs % 8 != 0 || inputs == 0 || outputs == 0)
        return error_set(err, -EINVAL, "(%zu, %zu): the CPU backend wants inputs in multiples of 8", outputs,
                         inputs);
    l->kind = kind;
    l->outputs = outputs;
    l->inputs = inputs;
    l->panels = (outputs + 7) / 8;
    l->panel_bytes =
        kind == LINEAR_FP9 ? fp9_panel_bytes(FP9_FP9, inputs) : (kind == LINEAR_BF16 ? 16 : 32) * inputs;
    size_t bytes = align64(l->panels * l->panel_bytes);
    size_t unit = bytes < LARGE ? 64 : HUGE_PAGE;
    l->data = aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
    if (!l->data) return error_set(err, -ENOMEM, "no memory for a weight matrix of %zu bytes", bytes);
    if (unit == HUGE_PAGE) madvise(l->data, bytes, MADV_HUGEPAGE); // fewer TLB misses; else only slower
    memset(l->data, 0, bytes);
    return 0;
}

void linear_free(struct linear *l)
{
    free(l->data);
    free(l->scales);
    memset(l, 0, sizeof *l);
}

uint64_t linear_bytes(const struct linear *l)
{
    uint64_t scales = l->scales ? (l->outputs + 127) / 128 * l->fp9.scale_stride * sizeof(float) : 0;
    return l->panels * l->panel_bytes + scales;
}

static float element(const struct weight *w, size_t r, size_t c)
{
    uint32_t u = 0;
    if (w->dtype == DTYPE_F32) {
        memcpy(&u, w->data + 4 * (r * w->cols + c), 4);
    } else {
        uint16_t h;
        memcpy(&h, w->data + 2 * (r * w->cols + c), 2);
        u = (uint32_t)h << 16;
    }
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* Where weight (o, i) lies in bf16 panels: the high or low half of pair i / 2. */
static uint8_t *bf16_place(const struct linear *l, size_t o, size_t i)
{
    return l->data + o / 8 * l->panel_bytes + 32 * (i / 2) + 4 * (o % 8) + 2 * (i % 2);
}

static void put_float(const struct linear *l, size_t o, size_t i, float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    uint16_t high = (uint16_t)(u >> 16);
    if (l->kind == LINEAR_BF16)
        memcpy(bf16_place(l, o, i), &high, 2);
    else
        memcpy(l->data + o / 8 * l->panel_bytes + 32 * i + 4 * (o % 8), &x, 4);
}

struct pack_job {
    const struct linear *l;
    const struct weight *w;
    uint64_t *bad; // (panels) 1 + element index of the panel's first bad weight, or 0
};

static void note_bad(const struct pack_job *j, size_t panel, size_t o, size_t i)
{
    if (j->bad[panel] == 0) j->bad[panel] = 1 + o * j->l->inputs + i;
}

static void pack_fp9(const struct pack_job *j, size_t panel)
{
    const struct linear *l = j->l;
    size_t rows = l->outputs - 8 * panel < 8 ? l->outputs - 8 * panel : 8;
    for (size_t first = 0; first < l->inputs; first += FP9_STRIP_INPUTS) {
        size_t n = l->inputs - first < FP9_STRIP_INPUTS ? l->inputs - first : FP9_STRIP_INPUTS;
        uint16_t code[FP9_LANES * FP9_STRIP_INPUTS] = {0};
        for (size_t r = 0; r < rows; r++)
            for (size_t k = 0; k < n; k++) {
                size_t o = 8 * panel + r, i = first + k;
                if (fp9_from_e4m3(j->w->data[o * l->inputs + i], &code[r * FP9_STRIP_INPUTS + k]))
                    note_bad(j, panel, o, i);
            }
        fp9_strip_put(fp9_panel_strip(FP9_FP9, l->data + panel * l->panel_bytes, first / FP9_STRIP_INPUTS),
                      l->inputs, first / FP9_STRIP_INPUTS, code);
    }
}

static void pack_task(void *arg, size_t panel, unsigned worker)
{
    (void)worker;
    const struct pack_job *j = arg;
    const struct linear *l = j->l;
    if (l->kind == LINEAR_FP9) {
        pack_fp9(j, panel);
        return;
    }
    for (size_t o = 8 * panel; o < 8 * panel + 8 && o < l->outputs; o++)
        for (size_t i = 0; i < l->inputs; i++) {
            float x = element(j->w, o, i);
            if (!isfinite(x)) note_bad(j, panel, o, i);
            put_float(l, o, i, x);
        }
}

/* Packed scales carry 2^16 (fp9/fp9.h); the product is exact for every scale let through. */
static int load_scales(struct linear *l, const struct weight *w, struct error *err)
{
    size_t rows = (l->outputs + FP9_BLOCK - 1) / FP9_BLOCK, cols = (l->inputs + FP9_BLOCK - 1) / FP9_BLOCK;
    l->scales = malloc(rows * cols * sizeof(float));
    if (!l->scales) return error_set(err, -ENOMEM, "no memory for %zu scales", rows * cols);
    for (size_t i = 0; i < rows * cols; i++) {
        float s;
        memcpy(&s, w->scales + 4 * i, 4);
        l->scales[i] = s * FP9_W_SCALE;
        if (!isnormal(s) || s < 0 || !isfinite(l->scales[i]))
            return error_set(err, -EINVAL,
                             "%s: %s_scale_inv: block (%zu, %zu) is %g, not a positive normal number",
                             w->file, w->name, i / cols, i % cols, (double)s);
    }
    l->fp9 = (struct fp9_matrix){.panels = l->data,
                                 .panel_stride = l->panel_bytes,
                                 .scales = l->scales,
                                 .scale_stride = cols,
                                 .inputs = l->inputs,
                                 .panel_count = l->panels};
    return 0;
}

int linear_load(struct linear *l, const struct weight *w, const struct fp9_kernels *k, struct pool *pool,
                struct error *err)
{
    enum linear_kind kind = w->dtype == DTYPE_F8_E4M3 ? LINEAR_FP9
                            : w->dtype == DTYPE_BF16  ? LINEAR_BF16
                                                      : LINEAR_F32;
    int e = allocate(l, kind, w->rows, w->cols, err);
    if (!e && kind == LINEAR_FP9) {
        l->fp9_dot = k->dot;
        e = load_scales(l, w, err);
    }
    if (e) {
        linear_free(l);
        return e;
    }
    struct pack_job j = {.l = l, .w = w, .bad = calloc(l->panels, sizeof(uint64_t))};
    if (!j.bad) {
        linear_free(l);
        return error_set(err, -ENOMEM, "no memory to check %zu panels", l->panels);
    }
    pool_run(pool, pack_task, &j, l->panels);
    uint64_t bad = 0;
    for (size_t p = 0; p < l->panels && !bad; p++) bad = j.bad[p];
    free(j.bad);
    if (!bad) return 0;
    size_t cols = l->inputs;
    linear_free(l);
    return error_set(err, -EINVAL, "%s: %s: weight (%zu, %zu) is not a finite number", w->file, w->name,
                     (size_t)(bad - 1) / cols, (size_t)(bad - 1) % cols);
}

static int fits_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return (u & 0xffffu) == 0;
}

int linear_pack(struct linear *l, size_t outputs, size_t inputs, const float *values, size_t output_stride,
                size_t input_stride, struct error *err)
{
    enum linear_kind kind = LINEAR_BF16;
    for (size_t o = 0; o < outputs && kind == LINEAR_BF16; o++)
        for (size_t i = 0; i < inputs; i++)
            if (!fits_bf16(values[o * output_stride + i * input_stride])) {
                kind = LINEAR_F32;
                break;
            }
    int e = allocate(l, kind, outputs, inputs, err);
    if (e) return e;
    for (size_t o = 0; o < outputs; o++)
        for (size_t i = 0; i < inputs; i++) put_float(l, o, i, values[o * output_stride + i * input_stride]);
    return 0;
}
