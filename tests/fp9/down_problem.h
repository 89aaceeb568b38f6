/* down_problem.h: a down product for tests: tokens' choices dealt at random; the test packs experts' weights
 * and makes activations. */
#ifndef DUCKD_TESTS_FP9_DOWN_PROBLEM_H
#define DUCKD_TESTS_FP9_DOWN_PROBLEM_H

#include "fp9/fp9_down.h"
#include "tests/fp9/fp9_random.h"

struct down_problem {
    struct fp9_down d;
    struct fp9_down_expert *expert; // panels, scales, marks are the test's to fill in, released here
    uint32_t *token;
    float *hs; // fp9_down_hs_floats(), likewise, and d.hs
    size_t rows, pairs, subtrees;
};

static inline struct down_problem down_problem_make(size_t tokens, size_t first, size_t slices,
                                                    size_t experts, size_t rows, enum fp9_format f,
                                                    uint64_t *seed)
{
    struct down_problem p = {.rows = rows};
    p.expert = calloc(experts, sizeof *p.expert);
    p.token = calloc(tokens * experts, sizeof *p.token);
    for (size_t e = 0; e < experts; e++) {
        p.expert[e] =
            (struct fp9_down_expert){.column = 8 * random_below(seed, 16), .pair = (uint32_t)p.pairs};
        for (uint32_t t = 0; t < tokens; t++)
            if (random_below(seed, 3) || e == 0) p.token[p.pairs++] = t;
        p.expert[e].pairs = (uint32_t)p.pairs - p.expert[e].pair;
    }
    for (size_t s = 0; s < slices; p.subtrees++) s += (size_t)1 << fp9_subtree_level(first + s, slices - s);
    p.d = (struct fp9_down){.expert = p.expert,
                            .experts = experts,
                            .first_slice = first,
                            .slices = slices,
                            .format = f,
                            .scale_stride = (8 * slices + 120 + 127) / 128,
                            .tokens = tokens,
                            .token = p.token,
                            .pairs = p.pairs,
                            .out_token = rows,
                            .out_subtree = rows * tokens};
    return p;
}

static inline void down_problem_free(struct down_problem *p)
{
    for (size_t e = 0; e < p->d.experts; e++) {
        free((void *)(uintptr_t)p->expert[e].panels);
        free((void *)(uintptr_t)p->expert[e].scales);
        free((void *)(uintptr_t)p->expert[e].marks);
    }
    free(p->expert);
    free(p->token);
    free(p->hs);
}

#endif
