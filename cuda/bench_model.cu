/* bench_model.cu: see bench_model.cuh. */
#include "cuda/bench_model.cuh"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "host/util/log.h"
}

static uint8_t *codes, *halves; // random fp8 codes, random bf16 values: every matrix reads their beginning
static size_t codes_size, halves_size;
static float scales[1 << 20];

void bench_model_open(const struct model_config *c)
{
    codes_size = (size_t)c->hidden_size *
                 (c->dense_width > c->heads * c->v_dim ? c->dense_width : c->heads * c->v_dim);
    halves_size = (size_t)c->vocab_size * c->hidden_size * 2;
    codes = (uint8_t *)malloc(codes_size + 8);
    halves = (uint8_t *)malloc(halves_size + 8);
    uint64_t z = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < codes_size; i += 8) {
        z ^= z << 13, z ^= z >> 7, z ^= z << 17;
        uint64_t v = z & 0xbfbfbfbfbfbfbfbfu; // exponents below the top: no NaN, magnitudes up to 1.875
        memcpy(codes + i, &v, 8);
    }
    for (size_t i = 0; i < halves_size; i += 8) { // +-[2^-7, 2^-6)
        z ^= z << 13, z ^= z >> 7, z ^= z << 17;
        uint64_t v = (z & 0x807f807f807f807fu) | 0x3c003c003c003c00u;
        memcpy(halves + i, &v, 8);
    }
}

static int fake_matrix(const struct checkpoint *, struct weight *out, uint64_t rows, uint64_t cols,
                       struct error *err, const char *format, ...)
{
    char name[256];
    va_list ap;
    va_start(ap, format);
    vsnprintf(name, sizeof name, format, ap);
    va_end(ap);
    const bool small =
        strstr(name, "mlp.gate.weight") || strstr(name, "weights_proj") || !strstr(name, "layers.");
    *out = {};
    out->rows = rows;
    out->cols = cols;
    out->name = "synthetic";
    out->dtype = small ? DTYPE_BF16 : DTYPE_F8_E4M3;
    out->data = small ? halves : codes;
    out->scales = small ? nullptr : (const uint8_t *)scales;
    const uint64_t grid = ((rows + 127) / 128) * ((cols + 127) / 128);
    if ((small ? rows * cols * 2 > halves_size : rows * cols > codes_size) ||
        grid > sizeof scales / sizeof *scales)
        return error_set(err, -E2BIG, "%s: %llu x %llu is larger than the random data", name,
                         (unsigned long long)rows, (unsigned long long)cols);
    for (uint64_t i = 0; i < grid; i++) scales[i] = 2.0f / sqrtf((float)cols);
    return 0;
}

static int fake_vector(const struct checkpoint *, float *out, uint64_t n, struct error *, const char *format,
                       ...)
{
    for (uint64_t i = 0; i < n; i++) out[i] = strstr(format, "bias") ? 0.0f : 1.0f;
    return 0;
}

static const struct tensor *fake_find(const struct checkpoint *, const char *)
{
    return nullptr;
}

static void fake_row(const struct weight *w, uint64_t row, float *out)
{
    for (uint64_t i = 0; i < w->cols; i++) {
        const uint32_t bits = (uint32_t)((const uint16_t *)halves)[(row * w->cols + i) % (halves_size / 2)]
                              << 16;
        memcpy(&out[i], &bits, 4);
    }
}

const struct cuda_host bench_host = {
    CUDA_HOST_ABI, error_set,   log_notice,  log_detail, progress_begin, progress_update,   progress_end,
    fake_find,     fake_matrix, fake_vector, fake_row,   rope_init,      rope_softmax_scale};

void bench_model_close()
{
    free(codes);
    free(halves);
}
