/* checkpoint.h: a Hugging Face checkpoint directory, memory-mapped and read-only.
 *
 * Owns the mappings of model.safetensors or of the shards named by model.safetensors.index.json; tensors
 * are looked up by name and their bytes are used in place. Everything about the file is checked at open
 * (truncation, overlapping or out-of-range offsets, dtype sizes against shapes, index against shards);
 * everything about a tensor's shape when it is asked for. Messages name file, tensor and both values. */
#ifndef DUCKD_HOST_MODEL_CHECKPOINT_H
#define DUCKD_HOST_MODEL_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

#include "host/util/error.h"

enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F8_E4M3, DTYPE_I32, DTYPE_I64, DTYPE_U8, DTYPE_OTHER };

struct tensor {
    const char *name;
    enum dtype dtype;
    uint32_t dims;
    uint64_t shape[8];
    const void *data; // little-endian, row-major, may be unaligned; valid while the checkpoint is open
    uint64_t bytes;
    uint32_t file;          // which shard, index into checkpoint_file()
    uint64_t file_offset;   // where in it the data starts
    const char *dtype_name; // as the file spells it, for messages
};

/* A weight matrix as the checkpoint has it: value(r, c) = element(r, c) x scale[r / 128][c / 128] (scale only
 * with fp8; edge blocks are simply smaller). */
struct weight {
    enum dtype dtype; // DTYPE_F8_E4M3, DTYPE_BF16 or DTYPE_F32
    uint64_t rows, cols;
    const uint8_t *data; // (rows, cols)
    const uint8_t
        *scales; // fp32 little-endian, maybe unaligned: (ceil(rows / 128), ceil(cols / 128)); NULL unless fp8
    const char *name; // of the tensor, for messages
    const char *file; // likewise, that it lies in
};

struct checkpoint;

int checkpoint_open(struct checkpoint **out, const char *dir, struct error *err);
/* Of tensors in memory, without files. Takes over the table (from malloc), if it succeeds; names and data
 * stay the caller's and must outlive it. */
int checkpoint_of(struct checkpoint **out, const char *name, struct tensor *tensors, size_t count,
                  struct error *err);
void checkpoint_close(struct checkpoint *c);

uint32_t checkpoint_files(const struct checkpoint *c);
const char *checkpoint_file(const struct checkpoint *c, uint32_t file); // path

size_t checkpoint_tensors(const struct checkpoint *c);
const struct tensor *checkpoint_tensor(const struct checkpoint *c, size_t i); // in order of (file, offset)
const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name); // NULL: not there

/* `name_format` and its arguments make the tensor's name. rows/cols are what the config demands. */
int checkpoint_matrix(const struct checkpoint *c, struct weight *out, uint64_t rows, uint64_t cols,
                      struct error *err, const char *name_format, ...) __attribute__((format(printf, 6, 7)));

/* A vector (norms, biases: F32, BF16 or F16), converted to fp32 into out[n]. */
int checkpoint_vector(const struct checkpoint *c, float *out, uint64_t n, struct error *err,
                      const char *name_format, ...) __attribute__((format(printf, 5, 6)));

/* Row r of a weight as fp32 into out[cols], scales applied. */
void weight_row(const struct weight *w, uint64_t row, float *out);

/* The safetensors header parser behind checkpoint_open(), for tests and fuzzing: checks a whole file image.
 */
int safetensors_check(const void *image, size_t bytes, const char *name, struct error *err);

#endif
