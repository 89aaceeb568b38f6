/* fp9.h: the 9-bit float of the routed experts: format, conversion, packed layouts, arithmetic contract.
 *
 * Defined here and nowhere else; used by the host and by ducks. Freestanding: no libc beyond memcpy, no
 * allocation, no global state but the kernel table. Needs AVX2 + FMA + F16C at run time (fp9_cpu_missing()).
 *
 * FORMAT  bit 8 = sign, bits 7..3 = exponent (bias 15), bits 2..0 = mantissa.
 *   exponent 1..30:  (-1)^s x 2^(e-15) x (1 + m/8), that is 2^-14 .. 61440
 *   body (bits 7..0) 0: +-0.  No other code with exponent 0, and none with exponent 31, is a number:
 *   subnormal operands cost 20 x on Intel and exponent 31 means Inf/NaN in half floats; conversions never
 *   make them, fp9_check() refuses them.
 *
 * LAYOUT  A matrix (outputs, inputs) is cut into panels of 8 outputs, a panel into strips of 32 inputs.
 *   A strip is a vector S of 8 32-bit lanes, then 8 such vectors W[0..7] of four inputs each; lanes are
 *   outputs. The last strip has only the vectors it needs, two per 8 inputs, filled up with zeros.
 *   With V = W[j] xor (S << j) and M = 0x8ff00000 the fp32 bits of raw(w) below are
 *     input 4j      W[j] & M
 *     input 4j + 1  (W[j] << 16) & M
 *     input 4j + 2  (V << 8) & M
 *     input 4j + 3  (V rotated left by 24) & M
 *   That is 9 bits a weight, read in one ascending stream, 64-byte aligned.
 *   The panels of a down matrix lie in quads: the first strips of four panels, their second strips ...; the
 *   last quad is filled up with panels of zeros. Why so: docs/format.md.
 *
 * E4M3 LAYOUT  The same panels, strips and quads of the checkpoint's own bytes, 8 bits a weight: no vector S,
 *   and a lane of W[j] holds, from its upper byte down, inputs 4j, 4j + 2, 4j + 1 and 4j + 3. A byte with its
 *   sign at bit 31 and the rest at 26..20 is 2^-8 raw(w) if it is no subnormal. Tiles (8 inputs of a panel)
 *   with subnormals are marked, because as they stand those would be subnormal operands: bit t of a mark is
 *   tile t of 16, of one panel or of any panel of a quad. Marks lie where whoever packs puts them.
 *
 * ARITHMETIC  fp32, round to nearest even, in this order and no other, whatever the instruction set:
 *   prepare    xs = x x 2^96; |x| < 2^-60 counts as +0 (so no product or sum below is ever subnormal)
 *   dot        for each block of 128 inputs, ascending:  blk = +0;
 *                  for each input i of the block, ascending:  blk = fma(raw(w), xs[i], blk)
 *                  sum = fma(scale, blk, sum)                 starting from sum = +0
 *              raw(w) = w x 2^-112 (the code shifted into float bits); scale = checkpoint scale x 2^16, exact
 *              (e4m3: blk is 2^-8 of that, and the packed scale 2^8 times as large: the same bits of sum)
 *   expert     p = tiny(silu(gate dot)) * tiny(up dot);  hs = prepare(tiny(p) * tiny(weight))
 *              tiny(v): |v| < 2^-60 counts as +0; silu: fp9_silu() below
 *   slice      8 neighbouring columns of the intermediate dimension, of every expert.
 *              Its partial sum of an output row: sum = +0; for each chosen expert, ascending id:
 *                  blk = +0; for its 8 columns, ascending:  blk = fma(raw(w), hs[i], blk)
 *                  sum = fma(scale, blk, sum)
 *   tree       slices are added by one aligned binary tree:
 *              node(level, i) = node(level-1, 2i) + node(level-1, 2i+1)
 *              a node whose right child lies wholly beyond the last slice is its left child.
 * Hence the same bits from 1 or 32 ducks, scalar, AVX2 or wider, one token or many in a step (NaNs stay
 * NaNs, but which NaN is not part of the contract). */
#ifndef FP9_FP9_H
#define FP9_FP9_H

#include <stddef.h>
#include <stdint.h>

#define FP9_LANES 8u         // outputs of a panel, columns of a slice
#define FP9_TILE_INPUTS 8u   // inputs of a tile: inputs are filled up to a multiple of this
#define FP9_STRIP_INPUTS 32u // inputs of a strip
#define FP9_QUAD 4u          // panels of a quad
#define FP9_BLOCK 128u       // inputs (and outputs) that share a scale
#define FP9_MAX 61440.0f     // largest number
#define FP9_MIN 0x1p-14f     // smallest positive number
#define FP9_X_SCALE 0x1p96f  // activations are multiplied by this before a product
#define FP9_W_SCALE 0x1p16f  // block scales are multiplied by this when packed: 2^112 / 2^96
#define FP9_X_TINY 0x1p-60f  // activations below this magnitude count as zero

/* What packed weights are: fp9's codes, or the checkpoint's e4m3 bytes. Same results, bit for bit. */
enum fp9_format { FP9_FP9, FP9_E4M3, FP9_FORMATS };
static inline const char *fp9_format_name(enum fp9_format f)
{
    return f == FP9_E4M3 ? "e4m3" : "fp9";
}
#define FP9_E4M3_SCALE 0x1p24f // FP9_W_SCALE of e4m3: its raw weights are w x 2^-120

/* ---- conversion of single codes ---- */

float fp9_to_float(uint16_t code);
int fp9_check(uint16_t code);                    // 0, or -1: not a number of the format
int fp9_from_e4m3(uint8_t e4m3, uint16_t *code); // exact for all 254 finite codes; -1: NaN
/* Round to nearest even; beyond +-61440 saturates (infinities too); below 2^-14 goes to the nearer of 0 and
 * 2^-14, 2^-15 itself to 0. -1: NaN. */
int fp9_from_float(float x, uint16_t *code);
float fp9_e4m3_to_float(uint8_t e4m3); // NaN for 0x7f, 0xff

/* ---- packed layout ---- */

size_t fp9_panel_bytes(enum fp9_format f, size_t inputs); // of one panel: 8 outputs; a multiple of 64
size_t fp9_quad_bytes(enum fp9_format f, size_t inputs);  // of four panels; a multiple of 64
size_t fp9_block_bytes(enum fp9_format f);                // of FP9_BLOCK inputs of a panel
uint8_t *fp9_panel_strip(enum fp9_format f, uint8_t *panel, size_t strip); // where it lies
uint8_t *fp9_quad_strip(enum fp9_format f, uint8_t *quad, size_t inputs, size_t panel, size_t strip);

/* Puts a whole strip of fp9 at its place: code[32 * lane + k] is the weight of input 32 * strip + k; inputs
 * beyond the last are 0. */
void fp9_strip_put(uint8_t *at, size_t inputs, size_t strip, const uint16_t code[256]);

/* The same out of 8 rows of e4m3 bytes that are `stride` apart, several times as fast, in either format;
 * inputs: a multiple of 8. Returns what to mark: bit t is set if tile t of the strip has subnormals, of e4m3
 * only. -1: one of them is NaN. */
struct fp9_e4m3_table {
    uint32_t raw[256];
};
void fp9_e4m3_table_make(struct fp9_e4m3_table *t);
int fp9_strip_put_e4m3(enum fp9_format f, uint8_t *at, size_t inputs, size_t strip,
                       const struct fp9_e4m3_table *t, const uint8_t *rows, size_t stride);

/* Puts one weight into a panel of fp9 (zeroed before); slow. input < inputs. */
void fp9_panel_set(uint8_t *panel, size_t inputs, size_t input, unsigned lane, uint16_t code);
/* fp9's code of a weight, whatever the format. */
uint16_t fp9_panel_get(enum fp9_format f, const uint8_t *panel, size_t input, unsigned lane);
uint16_t fp9_quad_get(enum fp9_format f, const uint8_t *quad, size_t inputs, size_t panel, size_t input,
                      unsigned lane);

/* A matrix or a run of its rows: panel p holds outputs first_output + 8p .. + 7. */
struct fp9_matrix {
    const uint8_t *panels; // panel p at + p * panel_stride, 64-byte aligned
    size_t panel_stride;   // bytes; >= fp9_panel_bytes(): gate and up panels lie in turn
    const float *scales;   // packed (x 2^16, e4m3 x 2^24): one row per 128 outputs, one scale per 128 inputs;
    size_t scale_stride;   //   panel p uses row (first_output + 8p) / 128 - first_output / 128
    size_t inputs, panel_count, first_output;
    /* 1: y holds the dots of the inputs before these, and this goes on with them, at a multiple of FP9_BLOCK:
     * panels, scales, marks and activations begin fp9_block_bytes(), 1, 1 and FP9_BLOCK later for each block.
     * The bits are those of one call. */
    int continues;
    enum fp9_format format;
    const uint16_t *marks; // e4m3: of panel p, block b: + p * mark_stride + b
    size_t mark_stride;
};

/* ---- kernels ---- */

/* x (n) -> xs (n rounded up to 8, the rest zero). */
typedef void fp9_prepare_fn(const float *x, size_t n, float *xs);

/* Prepared activations of several tokens: row t at xs + (row ? row[t] : t) * stride floats, 32-byte aligned.
 */
struct fp9_rows {
    const float *xs;
    size_t stride;
    const uint32_t *row; // NULL: 0, 1, 2 ...
    size_t count;
};

/* dot of panels [first, first + count): y[t * y_stride + 8 * (p - first) + lane]. */
typedef void fp9_dot_fn(const struct fp9_matrix *m, size_t first, size_t count, const struct fp9_rows *x,
                        float *y, size_t y_stride);

/* The same for two matrices of one shape (gate and up) in one pass over both. */
typedef void fp9_dot2_fn(const struct fp9_matrix *m0, const struct fp9_matrix *m1, size_t first, size_t count,
                         const struct fp9_rows *x, float *y0, float *y1, size_t y_stride);

/* hs of one token ("expert" above), n a multiple of 8. */
typedef void fp9_expert_fn(const float *g, const float *u, float weight, size_t n, float *hs);

struct fp9_kernels {
    const char *name; // "scalar", "avx2", "avx2-l2", "avx512"
    fp9_prepare_fn *prepare;
    fp9_dot_fn *dot;
    fp9_dot2_fn *dot2;
    fp9_expert_fn *expert;
    int one_slice; // is enough for a task of few tokens: its panels give all the chains
    /* The down product has its own header, fp9/fp9_down.h, because it owns the slices' tree. */
    const struct fp9_down_ops *down;
};

extern const struct fp9_kernels fp9_scalar, fp9_avx2, fp9_avx2_l2, fp9_avx512;

/* NULL: the CPU has all that is needed; else the name of what is missing ("AVX2", "FMA", "F16C"). */
const char *fp9_cpu_missing(void);
/* The fastest kernels of this CPU; `force` names one ("scalar", "avx2", ...) or is NULL. NULL: not available.
 */
const struct fp9_kernels *fp9_select(const char *force);

/* silu(x) = x / (1 + exp(-x)) by a fixed sequence of fp32 operations, for 2^-60 <= |x| within 2^-21 of
 * double. |x| < 2^-60 gives +0, x < -87 gives -0, NaN stays NaN; no operation is subnormal. */
float fp9_silu(float x);

#endif
