/* attention.h: absorbed multi-head latent attention of the rows of a job over cached keys.
 *
 * A task is a block of rows x a group of 8 heads: queries are folded through the key half of kv_b, scored
 * against the cached rows, the softmax-weighted latents are unfolded through the value half. Eight heads
 * share a vector, so every sum is a chain in one fixed order: scores over ascending dimensions, weights and
 * latents over ascending keys within a segment of 256 keys (by position, or by index in the selected list),
 * segments merged in ascending order. A row's bits depend on its own keys only, not on the rows or heads
 * beside it. */
#ifndef DUCKD_HOST_BACKEND_CPU_ATTENTION_H
#define DUCKD_HOST_BACKEND_CPU_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#include "host/backend/cpu/kv.h"
#include "host/backend/cpu/linear.h"

#define ATTENTION_ROWS 16u // of a task, at most
#define ATTENTION_HEADS 8u // of a task
#define ATTENTION_SEGMENT 256u

struct attention_shape {
    size_t heads, nope, rope, v, latent;
    float scale;
};

struct attention {
    struct attention_shape shape;
    const struct linear *key_up;   // (heads): nope -> latent
    const struct linear *value_up; // (heads): latent -> v
    struct kv_layer keys;
    uint32_t position, rows;
    uint32_t task_rows; // of a task, 1 .. ATTENTION_ROWS
    const float *q;     // (rows, heads, nope + rope), not yet roped
    size_t q_stride;
    const float *cosines, *sines; // (rows, rope / 2)
    const int32_t *selected;      // (rows, selected_stride): used by rows with more than top_k positions
    size_t selected_stride;
    uint32_t top_k; // UINT32_MAX: every row is dense
    float *out;     // (rows, heads, v)
    size_t out_stride;
    fp9_prepare_fn *prepare; // applied to out when the next product wants that; else NULL
};

/* The most rows of a task that give `threads` threads something to do. */
uint32_t attention_task_rows(const struct attention_shape *s, uint32_t rows, uint32_t threads);
size_t attention_tasks(const struct attention *a);
size_t attention_scratch_floats(const struct attention_shape *s);
double attention_work(const struct attention *a); // multiply-adds, about
void attention_task(const struct attention *a, size_t task, float *scratch);

#endif
