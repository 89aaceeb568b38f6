/* layer_full.cuh: what the tests of one full-size layer share: made weights and a device with them, and
 * comparing with the goldens. Whatever fails to run ends the program with its message. */
#ifndef DUCKD_TESTS_LAYER_FULL_CUH
#define DUCKD_TESTS_LAYER_FULL_CUH

#include "cuda/lane.cuh"

extern "C" {
#include "tests/golden/goldens.h"
}

#define MIXED 300u // rows of a job that begins below index_topk and ends above
#define POSITIONS 4160u
#define VOCAB 16u

/* ---- made weights (layer_weights.cu) ---- */

extern const struct cuda_host layer_host; // whose checkpoint is made on demand
struct model make_model();
uint64_t word(uint64_t seed, uint64_t n);
/* Values of goldens that are no weights. */
void plain(const char *name, float *out, uint64_t n);

/* ---- comparing (layer_rig.cu) ---- */

extern struct goldens *goldens;
extern int failures;

void must(int rc, const struct error *err);
void cuda_must(cudaError_t e, const char *what);
const struct golden *need(const char *name);
void near(const char *what, const float *x, const float *want, size_t n, double limit);

/* ---- the layer on the device (layer_rig.cu) ---- */

struct rig {
    struct gpu_model m;
    struct lane l;
    uint32_t *pages;
    float *host; // (MIXED, hidden)
};

/* x = input, h = 0, and the job's place. */
void begin(rig *t, const float *input, uint32_t position, uint32_t rows);
void attend(rig *t, uint32_t position, uint32_t rows);
/* Bytes from the KV's base on. */
size_t row_at(const rig *t, uint32_t position);
size_t index_row_at(const rig *t, uint32_t position);
/* Cached rows [first, first + n) of the three kinds against the goldens. */
void compare_cache(rig *t, uint32_t first, uint32_t n, const char *latent, const char *pe, const char *key,
                   double limit);

#endif
