/* cuda_host.h: the seam between duckd and build/libduckd-cuda.so, which is loaded at run time.
 *
 * The object exports one function; it takes what the backend needs from the program that loads it (so
 * that there is one log level and one checkpoint reader) and returns the operations of backend.h. No CUDA
 * type crosses this header; a program that never loads the object needs no CUDA on its machine. */
#ifndef DUCKD_CUDA_CUDA_HOST_H
#define DUCKD_CUDA_CUDA_HOST_H

#include "host/backend/backend.h"
#include "host/backend/rope.h"
#include "host/util/log.h"

#define CUDA_HOST_ABI 8u // refused when the two sides were built from different headers

struct cuda_host {
    uint32_t abi;
    int (*error_set)(struct error *err, int code, const char *format, ...);
    void (*log_notice)(const char *format, ...);
    void (*log_detail)(const char *format, ...);
    void (*progress_begin)(struct progress *p, const char *what, const char *unit, double total,
                           double scale);
    void (*progress_update)(struct progress *p, double done);
    void (*progress_end)(struct progress *p);
    const struct tensor *(*checkpoint_find)(const struct checkpoint *c, const char *name);
    int (*checkpoint_matrix)(const struct checkpoint *c, struct weight *out, uint64_t rows, uint64_t cols,
                             struct error *err, const char *name_format, ...);
    int (*checkpoint_vector)(const struct checkpoint *c, float *out, uint64_t n, struct error *err,
                             const char *name_format, ...);
    void (*weight_row)(const struct weight *w, uint64_t row, float *out);
    void (*rope_init)(struct rope *r, const struct model_config *c);
    float (*rope_softmax_scale)(const struct model_config *c);
};

#define CUDA_HOST_SYMBOL "duckd_cuda_backend"
/* NULL with err filled: another ABI, no usable device. `host` must outlive the backend. */
typedef const struct backend_ops *cuda_backend_fn(const struct cuda_host *host, struct error *err);

#endif
