/* matrix.cuh: weight matrices on the device, and their product with 1 to many rows.
 *
 * fp8 and bf16 matrices lie in strips of 16 outputs; a strip is a run of tiles of 2048 bytes (16 x 128 fp8 or
 * 16 x 64 bf16) in the order in which the lanes of a warp read them, 16 bytes each: one ascending stream. fp8
 * tiles have one fp32 scale each (the checkpoint's 128x128 scale). Other shapes (fp32 weights; heads whose
 * rows do not meet the scale blocks) are kept as fp32 rows.
 *
 * A grouped matrix is many small ones of group_rows outputs below each other: group i multiplies the i-th
 * part of the vector (heads of the absorbed projections). */
#ifndef DUCKD_CUDA_MATRIX_CUH
#define DUCKD_CUDA_MATRIX_CUH

#include "cuda/vector.cuh"

enum matrix_type { MATRIX_FP8, MATRIX_BF16, MATRIX_F32 };

struct matrix {
    enum matrix_type type;
    const uint8_t *data;
    const float *scales; // fp8: (strips, ktiles)
    uint32_t rows, cols; // all groups together; cols of one group
    uint32_t strips;     // of 16 rows
    uint32_t ktiles;     // tiles along cols
    uint32_t group_rows; // = rows without groups
};

/* How matrix rows and columns come from the checkpoint's: plain; or of kv_b (heads, nope + v, latent): `keys`
 * is per head (latent, nope), transposed, `values` per head (v, latent). */
enum matrix_view { VIEW_PLAIN, VIEW_KEYS, VIEW_VALUES };

struct matrix_source {
    enum matrix_view view;
    uint32_t nope, v, latent; // of the views of kv_b
};

/* Bytes of data and of scales that a matrix of this shape takes. */
size_t matrix_bytes(const matrix *m);
size_t matrix_scale_bytes(const matrix *m);
/* Shape without data. */
void matrix_shape(matrix *m, enum matrix_type type, uint32_t rows, uint32_t cols, uint32_t group_rows);

/* Repacks source rows [row0, row0 + n) lying on the device (fp8, bf16 or fp32 elements, row-major, scols
 * columns) into m; `scales` is the whole checkpoint scale grid on the device. With a view of kv_b, row0 and n
 * are whole heads. */
cudaError_t matrix_repack(const matrix *m, const matrix_source *s, enum dtype dtype, const void *rows,
                          uint32_t row0, uint32_t n, uint32_t scols, const float *scales,
                          cudaStream_t stream);

/* ---- product ---- */

#define PRODUCT_MAX 4 // matrices with one input in one launch

struct product_out {
    float *y;        // (rows, stride); NULL: not wanted this time, but the others' order is as if it were
    uint32_t stride; // in floats
    bool add;        // y += instead of y =
};

cudaError_t product_open(); // part of attention_open()
/* y_i = m_i x for `rows` rows; all m_i share the cols of x and are not grouped. The sum's order is fixed by
 * the shapes and types of the matrices of the launch alone. */
cudaError_t product(const matrix *const m[], const product_out out[], uint32_t count, const vec &x,
                    uint32_t rows, cudaStream_t stream);

#endif
