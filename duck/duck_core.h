/* duck_core.h: a duck's memory of experts and the arithmetic on them. No network, no threads, no clock.
 *
 * Used by local ducks (threads of the daemon), by duck-linux and by the bare-metal firmware. Owns the packed
 * weights of a set of slice runs, in memory the caller provides; allocates nothing itself after
 * duck_core_init(). A bank is the feed-forward of one layer: `routed` chosen experts (ids 0 .. routed - 1)
 * and `always` experts that every token uses (shared expert, dense MLP: ids routed ..), all `width` columns
 * wide. A wider shared expert is several `always` experts. Arithmetic: fp9/fp9.h. */
#ifndef DUCK_DUCK_CORE_H
#define DUCK_DUCK_CORE_H

#include <stddef.h>
#include <stdint.h>

#include "fp9/fp9.h"

struct duck_bank_shape {
    uint32_t routed, always; // experts
    uint32_t width;          // intermediate columns of each, a multiple of 8
};

/* A run of slices [first, first + count) of one bank. A duck may hold several runs of a bank. */
struct duck_run {
    uint32_t bank, first, count;
};

struct duck_shape {
    uint32_t hidden; // a multiple of 8
    uint32_t banks;
    const struct duck_bank_shape *bank; // (banks)
    uint32_t runs;
    const struct duck_run *run; // (runs), ascending by (bank, first), not overlapping
    enum fp9_format format;     // of all weights; the same results either way
};

struct duck_core;

/* Bytes of weights and of bookkeeping that `shape` needs; the memory handed to init must be 64-byte aligned.
 */
size_t duck_core_bytes(const struct duck_shape *shape);
/* Keeps copies of the shape. NULL if memory is too small or the shape is impossible. All weights are zero
 * afterwards. */
struct duck_core *duck_core_init(void *memory, size_t bytes, const struct duck_shape *shape,
                                 const struct fp9_kernels *k);
/* The same in memory that is all zero already: the caller cleared it in pieces, in its own time. */
struct duck_core *duck_core_init_zeroed(void *memory, size_t bytes, const struct duck_shape *shape,
                                        const struct fp9_kernels *k);
/* The same with the weights of each run in a place of its own, so that a run may outlive a change of the
 * shape beside it. `head` has duck_core_head_bytes(); every run is placed, in duck_core_run_bytes() of memory
 * that is all zero or holds the very run already, before anything else is done with the core. All 64-byte
 * aligned; the shape is possible. */
size_t duck_core_head_bytes(const struct duck_shape *shape);
size_t duck_core_run_bytes(const struct duck_shape *shape, uint32_t run);
struct duck_core *duck_core_init_head(void *head, const struct duck_shape *shape,
                                      const struct fp9_kernels *k);
void duck_core_place_run(struct duck_core *d, uint32_t run, uint8_t *memory);
/* 0 if a shape is impossible; counts and widths that a duck could not hold anyway are. */
int duck_shape_is_possible(const struct duck_shape *shape);

enum duck_matrix { DUCK_GATE, DUCK_UP, DUCK_DOWN };

/* A whole tensor of the checkpoint, row-major: gate and up (width, hidden), rows are slices' columns; down
 * (hidden, width), columns are. Element (r, c) counts code x scale[r/128][c/128]. */
struct duck_tensor {
    const uint8_t *data;
    const uint8_t *scales;  // e4m3: (ceil(rows/128), ceil(cols/128)) float, maybe unaligned; else NULL
    uint32_t element_bytes; // 1: fp8 e4m3, 2: bf16, 4: fp32
    uint32_t hidden, width;
    enum duck_matrix which;
};

enum { DUCK_BAD_WEIGHT = -1, DUCK_BAD_SCALE = -2 };
static inline int duck_scale_end(enum fp9_format f) // packed it is still a number
{
    return f == FP9_E4M3 ? 104 : 112;
}
/* Loads one expert's matrix into every run that wants part of it. `column` is the position of this expert's
 * column 0 inside the tensor, a multiple of 8 (non-zero only for the parts of a wide shared expert); scales
 * are those of the tensor's own coordinates, whatever the cut. bf16 and fp32: each 128 x 128 block is scaled
 * by a power of two so that its largest magnitude lies in [2^14, 2^15) and rounded to fp9 (what that loses:
 * docs/format.md).
 *
 * Returns 0, DUCK_BAD_WEIGHT: a NaN, of floats also infinite or 2^126 and beyond, or floats for a core that
 * holds e4m3; or DUCK_BAD_SCALE: a scale that is not a positive normal number below 2^duck_scale_end();
 * *where is then its element index in `data` or `scales`. */
int duck_core_load(struct duck_core *d, uint32_t bank, uint32_t expert, uint32_t column,
                   const struct duck_tensor *t, uint64_t *where);

/* One run's part of one expert's matrix, cut out or inside of its tensor: gate and up (8 * count, hidden),
 * down (hidden, 8 * count). duck_core_load() loads every part with the ones below. */
struct duck_part {
    uint32_t run; // in the shape's order
    uint32_t expert;
    enum duck_matrix which;
    uint32_t column;     // where the run's first column lies in its 128-block of the tensor
    int element_bytes;   // 1: e4m3, 2: bf16, 4: fp32
    const uint8_t *data; // row r at + r * stride elements; no alignment
    size_t stride;
    const uint8_t *scales; // of the blocks it touches, row r at + r * scale_stride floats; no alignment
    size_t scale_stride;
};
/* First the scales, then the panels (8 outputs each), each in strips (8 outputs x 32 inputs), in any order
 * and by several cores. *where: index from part->scales or part->data on. */
int duck_core_load_scales(struct duck_core *d, const struct duck_part *p, uint64_t *where);
uint32_t duck_core_part_panels(const struct duck_core *d, const struct duck_part *p);
uint32_t duck_core_part_strips(const struct duck_core *d, const struct duck_part *p); // of each panel
int duck_core_load_strips(struct duck_core *d, const struct duck_part *p, uint32_t panel, uint32_t first,
                          uint32_t count, uint64_t *where);
/* The scale of 128 x 128 block (block_row, block_col) of a float tensor (rows, cols): the power of two that
 * brings its largest magnitude into [2^14, 2^15). DUCK_BAD_WEIGHT as above. */
int duck_core_float_scale(const uint8_t *data, int element_bytes, size_t rows, size_t cols, size_t block_row,
                          size_t block_col, float *scale, uint64_t *where);

/* ---- one step ---- */

/* Tokens and chosen experts of one bank. Always-on experts are added by the core with weight 1. */
struct duck_step {
    uint32_t bank, tokens, top_k;
    const float *x;       // (tokens, hidden), as decoded from the wire
    const int32_t *ids;   // (tokens, top_k) ascending, 0 .. routed - 1
    const float *weights; // (tokens, top_k)
};

/* Scratch of one step in flight: `bytes` for up to max_tokens tokens; 64-byte aligned memory from the caller.
 */
size_t duck_step_scratch_bytes(const struct duck_core *d, uint32_t max_tokens, uint32_t max_top_k);

/* A step runs in three phases, each cut into independent tasks; a phase begins when the one before is
 * complete. PREPARE: activations; HIDDEN: gate, up, silu; DOWN: row blocks of the output, each final when its
 * task returns. */
enum duck_phase { DUCK_PREPARE, DUCK_HIDDEN, DUCK_DOWN_ROWS, DUCK_PHASES };

struct duck_work; // in the scratch
/* NULL: the step does not fit `bytes`, or its bank, ids (ascending, below `routed`) or counts are impossible.
 * Small steps are prepared right here: a phase may have no tasks. */
struct duck_work *duck_work_begin(const struct duck_core *d, void *scratch, size_t bytes,
                                  const struct duck_step *step);
uint32_t duck_work_tasks(const struct duck_work *w, enum duck_phase phase);
void duck_work_run(struct duck_work *w, enum duck_phase phase, uint32_t task);
/* The same with other kernels than the core's: the judge's program (duck/program.h) brings its own. */
void duck_work_run_with(const struct duck_work *w, const struct fp9_kernels *k, enum duck_phase phase,
                        uint32_t task);
/* With these kernels in pieces, for the one core that has other things to look after in between: begins
 * `task`, or goes on with it, for about *work multiply-adds (decoding a weight counted as three), and takes
 * off *work what was done; a block of inputs and an expert's part of a quad are done as a whole, with
 * hundreds of tokens some 500000. 1: the task is done. One task at a time. */
int duck_work_run_piece(const struct duck_work *w, const struct fp9_kernels *k, enum duck_phase phase,
                        uint32_t task, size_t *work);
#define DUCK_PIECE_WORK 160000u // some 7 us

/* Complete subtrees: a run is cut into the fewest aligned subtrees [first, first + 2^level). */
struct duck_subtree {
    uint32_t first, level;
};
/* Returns how many there are and writes at most `max` of them. */
uint32_t duck_core_subtrees(const struct duck_core *d, uint32_t bank, struct duck_subtree *out, uint32_t max);
/* After DUCK_DOWN_ROWS: partial sums (tokens, hidden) of subtree i of the step's bank; token t at + t *
 * hidden. The caller may overwrite them (sums of the tree are made in place). */
float *duck_work_partial(const struct duck_work *w, uint32_t subtree);

/* DOWN_ROWS tasks that rows [first, first + count) of subtree i wait for: returns the first, *end is behind
 * the last. */
uint32_t duck_work_row_tasks(const struct duck_work *w, uint32_t subtree, uint32_t first, uint32_t count,
                             uint32_t *end);
/* Most DOWN_ROWS tasks a step can have. */
uint32_t duck_work_max_row_tasks(const struct duck_core *d);

/* Expert reads of the step: distinct (expert, run) pairs and the bytes of packed weights behind them. */
void duck_work_reads(const struct duck_work *w, uint64_t *experts, uint64_t *bytes);

#endif
