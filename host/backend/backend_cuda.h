/* backend_cuda.h: the CUDA backend, if this machine has one.
 *
 * It lives in libduckd-cuda.so beside the program (DUCKD_CUDA_LIBRARY names another file) and is loaded on
 * demand, so that one program runs with and without CUDA on the machine. The object stays loaded until the
 * process ends. */
#ifndef DUCKD_HOST_BACKEND_BACKEND_CUDA_H
#define DUCKD_HOST_BACKEND_BACKEND_CUDA_H

#include "host/backend/backend.h"

/* NULL: err says in one line why there is none (no such file, no driver, no device ...). */
const struct backend_ops *backend_cuda_load(struct error *err);

#endif
