/* backend_cuda.c: finds and loads libduckd-cuda.so and hands it what it uses of this program. */
#include "host/backend/backend_cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/cuda_host.h"

#define LIBRARY "libduckd-cuda.so"

static const struct cuda_host host = {
    .abi = CUDA_HOST_ABI,
    .error_set = error_set,
    .log_notice = log_notice,
    .log_detail = log_detail,
    .progress_begin = progress_begin,
    .progress_update = progress_update,
    .progress_end = progress_end,
    .checkpoint_find = checkpoint_find,
    .checkpoint_matrix = checkpoint_matrix,
    .checkpoint_vector = checkpoint_vector,
    .weight_row = weight_row,
    .rope_init = rope_init,
    .rope_softmax_scale = rope_softmax_scale,
};

/* Where the object may lie: beside the program or, for tests, one folder above. */
static bool find_library(char *path, size_t size)
{
    static const char *const places[] = {"/" LIBRARY, "/../" LIBRARY};
    char program[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0) return false;
    program[n] = '\0';
    *strrchr(program, '/') = '\0';
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(path, size, "%s%s", program, places[i]);
        if (access(path, R_OK) == 0) return true;
    }
    return false;
}

const struct backend_ops *backend_cuda_load(struct error *err)
{
    char path[PATH_MAX + sizeof LIBRARY + 4];
    const char *given = getenv("DUCKD_CUDA_LIBRARY");
    if (given) {
        snprintf(path, sizeof path, "%s", given);
    } else if (!find_library(path, sizeof path)) {
        error_set(err, -ENOENT, "no %s beside the program: built without CUDA", LIBRARY);
        return NULL;
    }
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) {
        error_set(err, -ENOENT, "cannot load %s", dlerror());
        return NULL;
    }
    cuda_backend_fn *entry;
    *(void **)&entry = dlsym(object, CUDA_HOST_SYMBOL);
    if (!entry) {
        error_set(err, -EINVAL, "%s has no %s", path, CUDA_HOST_SYMBOL);
        dlclose(object);
        return NULL;
    }
    return entry(&host, err);
}
