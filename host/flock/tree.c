/* tree.c: the one binary tree that adds slices. */
#include <assert.h>
#include <stdbool.h>

#include "host/flock/plan.h"

static void add(float *restrict left, const float *restrict right, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) left[i] += right[i];
}

static bool are_siblings(const struct tree_node *l, const struct tree_node *r)
{
    return l->level == r->level && (l->first >> l->level) % 2 == 0 && r->first == l->first + (1u << l->level);
}

/* The left part of `nodes` serves as a stack of finished nodes, levels falling. */
float *tree_reduce(struct tree_node *nodes, uint32_t count, uint32_t slices, uint64_t n)
{
    assert(count > 0 && nodes[0].first == 0);
    uint32_t top = 0;
    for (uint32_t i = 1; i < count; i++) {
        nodes[++top] = nodes[i];
        while (top > 0 && are_siblings(&nodes[top - 1], &nodes[top])) {
            top--;
            add(nodes[top].values, nodes[top + 1].values, n);
            nodes[top].level++;
        }
    }
    // What is left stands at the right edge: nothing lies beyond, so a node counts as its own parent until it
    // has a left sibling.
    while (top > 0) {
        assert(nodes[top].level <= nodes[top - 1].level);
        top--;
        add(nodes[top].values, nodes[top + 1].values, n);
        nodes[top].level++;
    }
    assert((uint64_t)1 << nodes[0].level >= slices);
    (void)slices;
    return nodes[0].values;
}
