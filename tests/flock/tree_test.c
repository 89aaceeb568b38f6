// tree_test.c: whatever complete subtrees arrive, the sum has the bits of the full tree over single slices.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/flock/plan.h"

#define N 5u // values per slice
#define MAX_SLICES 300u

static float slice_values[MAX_SLICES][N];
static uint64_t rng = 7;

static uint32_t random_below(uint32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng >> 33) % n);
}

/* Magnitudes far apart, so that every other order of adding gives other bits. */
static void fill_slices(uint32_t slices)
{
    for (uint32_t s = 0; s < slices; s++) {
        for (uint32_t i = 0; i < N; i++) {
            float m = (float)random_below(1u << 24) / 0x1p23f - 1;
            slice_values[s][i] = ldexpf(m, (int)random_below(20));
        }
    }
}

/* fp9.h, "tree", word for word. */
static void node_value(uint32_t level, uint32_t i, uint32_t slices, float *out)
{
    if (level == 0) {
        memcpy(out, slice_values[i], sizeof slice_values[i]);
        return;
    }
    node_value(level - 1, 2 * i, slices, out);
    if ((uint64_t)(2 * i + 1) << (level - 1) >= slices) return;
    float right[N];
    node_value(level - 1, 2 * i + 1, slices, right);
    for (uint32_t k = 0; k < N; k++) out[k] += right[k];
}

struct partition {
    struct tree_node node[MAX_SLICES];
    float values[MAX_SLICES][N];
    uint32_t count, slices;
};

static void emit(struct partition *p, uint32_t level, uint32_t i)
{
    float *v = p->values[p->count];
    node_value(level, i, p->slices, v);
    p->node[p->count++] = (struct tree_node){.first = i << level, .level = level, .values = v};
}

/* Cuts a node at random into complete subtrees. At the right edge a subtree may also be named by the level of
 * an ancestor that holds nothing else. */
static void cut(struct partition *p, uint32_t level, uint32_t i, uint32_t chance)
{
    if (level == 0 || random_below(100) < chance) {
        emit(p, level, i);
        return;
    }
    cut(p, level - 1, 2 * i, chance);
    if ((uint64_t)(2 * i + 1) << (level - 1) < p->slices) cut(p, level - 1, 2 * i + 1, chance);
}

static uint32_t root_level(uint32_t slices)
{
    uint32_t level = 0;
    while ((1u << level) < slices) level++;
    return level;
}

static void check(struct partition *p)
{
    float want[N];
    node_value(root_level(p->slices), 0, p->slices, want);
    float *got = tree_reduce(p->node, p->count, p->slices, N);
    assert_memory_equal(got, want, sizeof want);
}

static void random_subtrees(void **state)
{
    (void)state;
    static struct partition p;
    for (uint32_t slices = 1; slices <= 70; slices++) {
        fill_slices(slices);
        for (uint32_t chance = 0; chance <= 60; chance += 5) {
            p.count = 0;
            p.slices = slices;
            cut(&p, root_level(slices), 0, chance);
            check(&p);
        }
    }
}

/* As ducks do it: runs at random boundaries, each cut into the fewest aligned subtrees. */
static void random_runs(void **state)
{
    (void)state;
    static struct partition p;
    for (uint32_t slices = 1; slices <= MAX_SLICES; slices += slices < 20 ? 1 : 7) {
        fill_slices(slices);
        for (int round = 0; round < 8; round++) {
            p.count = 0;
            p.slices = slices;
            for (uint32_t at = 0; at < slices;) {
                uint32_t end = at + 1 + random_below(slices);
                if (end > slices) end = slices;
                while (at < end) {
                    uint32_t level = 0;
                    while (at % (2u << level) == 0 && at + (2u << level) <= end) level++;
                    emit(&p, level, at >> level);
                    at += 1u << level;
                }
            }
            check(&p);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_subtrees),
        cmocka_unit_test(random_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
