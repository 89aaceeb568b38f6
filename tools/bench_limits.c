/* bench_limits.c: reading, FMA peak, front end and the plain F16C GEMV. Compiled with -mavx2 -mfma -mf16c. */
#include "tools/bench_limits.h"

#include <immintrin.h>
#include <string.h>

#include "host/util/clock.h"

uint64_t limits_read(const uint8_t *p, size_t bytes)
{
    __m256i sum[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                      _mm256_setzero_si256()};
    for (size_t i = 0; i < bytes; i += 128)
        for (size_t k = 0; k < 4; k++)
            sum[k] = _mm256_or_si256(sum[k], _mm256_load_si256((const __m256i *)(p + i + 32 * k)));
    sum[0] = _mm256_or_si256(_mm256_or_si256(sum[0], sum[1]), _mm256_or_si256(sum[2], sum[3]));
    return (uint64_t)_mm256_extract_epi64(sum[0], 0);
}

float limits_fma(size_t rounds)
{
    __m256 acc[12];
    const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
    for (size_t k = 0; k < 12; k++) acc[k] = _mm256_set1_ps((float)k);
    for (size_t r = 0; r < 16 * rounds; r++)
#pragma GCC unroll 12
        for (size_t k = 0; k < 12; k++) acc[k] = _mm256_fmadd_ps(acc[k], a, b);
    for (size_t k = 1; k < 12; k++) acc[0] = _mm256_add_ps(acc[0], acc[k]);
    return _mm256_cvtss_f32(acc[0]);
}

/* Chain and nops in turn, so short that an interruption hits few of them. */
double limits_nops(void)
{
    enum { TURNS = 11, ROUNDS = 160 };
    double cycle = 1e9, nop[TURNS];
    for (int turn = 0; turn < TURNS; turn++) {
        uint64_t sum = 0, start = clock_ns();
        for (int i = 0; i < ROUNDS; i++)
            __asm__ volatile(".rept 64\n\tadd $1, %0\n\t.endr" : "+r"(sum) : : "cc");
        uint64_t middle = clock_ns();
        for (int i = 0; i < ROUNDS; i++)
            __asm__ volatile(".rept 128\n\tnopl 0(%%rax)\n\t.endr" : : : "memory");
        double took = (double)(middle - start) / (64.0 * ROUNDS);
        if (took < cycle) cycle = took;
        took = (double)(clock_ns() - middle) / (128.0 * ROUNDS);
        int at = turn;
        for (; at > 0 && nop[at - 1] > took; at--) nop[at] = nop[at - 1];
        nop[at] = took;
    }
    return cycle / nop[TURNS / 2];
}

/* 16 codes to half floats: body << 7, sign bit on top. */
static __m256i halves(const uint8_t *bodies, const uint8_t *signs)
{
    const __m256i bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192,
                                          16384, (short)0x8000);
    short bits;
    memcpy(&bits, signs, sizeof bits);
    __m256i set = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16(bits), bit), bit);
    __m256i body = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)bodies)), 7);
    return _mm256_or_si256(body, _mm256_and_si256(set, _mm256_set1_epi16((short)0x8000)));
}

float limits_plain_f16c(const uint8_t *bodies, const uint8_t *signs, size_t rows, size_t cols, const float *x)
{
    __m256 total = _mm256_setzero_ps();
    for (size_t r = 0; r < rows; r++, bodies += cols, signs += cols / 8) {
        __m256 acc[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
        for (size_t i = 0; i < cols; i += 32)
            for (size_t h = 0; h < 2; h++) {
                __m256i w = halves(bodies + i + 16 * h, signs + i / 8 + 2 * h);
                const float *at = x + i + 16 * h;
                acc[2 * h] = _mm256_fmadd_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(w)), _mm256_loadu_ps(at),
                                             acc[2 * h]);
                acc[2 * h + 1] = _mm256_fmadd_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(w, 1)),
                                                 _mm256_loadu_ps(at + 8), acc[2 * h + 1]);
            }
        total =
            _mm256_add_ps(total, _mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3])));
    }
    float lane[8];
    _mm256_storeu_ps(lane, total);
    return lane[0] + lane[1] + lane[2] + lane[3] + lane[4] + lane[5] + lane[6] + lane[7];
}
