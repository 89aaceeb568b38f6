/* fp9_edges_test.c: no kernel reads beyond its panels. They lie against pages that cannot be read, first at
 * the beginning of what can, then at its end: no sanitizer looks into assembly, and a byte too far is met
 * only where the page before or behind is not there. All weights are zero: bits are fp9_kernels_test.c's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <sys/mman.h>

#include "tests/fp9/down_problem.h"

enum edge { BEGINNING, END, EDGES };
enum { PAGE = 4096, PANELS = 9 };

struct walled {
    uint8_t *map, *at;
    size_t bytes;
};

/* `bytes` bytes, a multiple of 32, between two pages without access. */
static struct walled walled_make(size_t bytes, enum edge edge)
{
    const size_t pages = (bytes + PAGE - 1) / PAGE;
    struct walled w = {.bytes = (pages + 2) * PAGE};
    w.map = mmap(NULL, w.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(w.map, MAP_FAILED);
    assert_int_equal(mprotect(w.map + PAGE, pages * PAGE, PROT_READ | PROT_WRITE), 0);
    w.at = edge == BEGINNING ? w.map + PAGE : w.map + (pages + 1) * PAGE - bytes;
    return w;
}

static void walled_free(struct walled *w)
{
    munmap(w->map, w->bytes);
}

static void dots(const struct fp9_kernels *k, enum fp9_format f, enum edge edge, size_t tokens, size_t inputs)
{
    const size_t stride = (inputs + 7) / 8 * 8, blocks = (inputs + FP9_BLOCK - 1) / FP9_BLOCK;
    const size_t bytes = PANELS * fp9_panel_bytes(f, inputs);
    struct walled panels = walled_make(bytes, edge), xs = walled_make(tokens * stride * sizeof(float), edge);
    float *scales = aligned_bytes(blocks * sizeof *scales),
          *y = aligned_bytes(2 * tokens * 8 * PANELS * sizeof *y);
    uint16_t *marks = calloc(PANELS * blocks, sizeof *marks);
    for (size_t i = 0; i < blocks; i++) scales[i] = 1.0f;
    memset(panels.at, 0, bytes);
    memset(xs.at, 0, tokens * stride * sizeof(float));
    const struct fp9_matrix m = {.panels = panels.at,
                                 .panel_stride = fp9_panel_bytes(f, inputs),
                                 .scales = scales,
                                 .scale_stride = blocks,
                                 .inputs = inputs,
                                 .panel_count = PANELS,
                                 .format = f,
                                 .marks = f == FP9_E4M3 ? marks : NULL,
                                 .mark_stride = blocks};
    const struct fp9_rows x = {(const float *)xs.at, stride, NULL, tokens};
    k->dot(&m, 0, PANELS, &x, y, 8 * PANELS);
    for (size_t i = 0; i < tokens * 8 * PANELS; i++) assert_true(y[i] == 0.0f);
    k->dot2(&m, &m, 0, PANELS, &x, y, y + tokens * 8 * PANELS, 8 * PANELS);
    for (size_t i = 0; i < 2 * tokens * 8 * PANELS; i++) assert_true(y[i] == 0.0f);
    free(scales);
    free(y);
    free(marks);
    walled_free(&panels);
    walled_free(&xs);
}

static void down(const struct fp9_kernels *k, enum fp9_format f, enum edge edge, size_t tokens, size_t slices)
{
    enum { EXPERTS = 3, ROWS = 72 };
    uint64_t seed = 31 + tokens;
    struct down_problem p = down_problem_make(tokens, 0, slices, EXPERTS, ROWS, f, &seed);
    const size_t bytes = (ROWS / 8 + FP9_QUAD - 1) / FP9_QUAD * fp9_quad_bytes(f, 8 * slices);
    const size_t scales = (ROWS + 127) / 128 * p.d.scale_stride, quads = (ROWS / 8 + FP9_QUAD - 1) / FP9_QUAD;
    struct walled panels[EXPERTS],
        hs = walled_make(fp9_down_hs_floats(p.pairs, slices) * sizeof(float), edge);
    memset(hs.at, 0, fp9_down_hs_floats(p.pairs, slices) * sizeof(float));
    p.d.hs = (const float *)hs.at;
    for (size_t e = 0; e < EXPERTS; e++) {
        panels[e] = walled_make(bytes, edge);
        memset(panels[e].at, 0, bytes);
        float *scale = aligned_bytes(scales * sizeof *scale);
        for (size_t i = 0; i < scales; i++) scale[i] = 1.0f;
        p.expert[e].panels = panels[e].at;
        p.expert[e].scales = scale;
        p.expert[e].marks = f == FP9_E4M3 ? calloc(quads * fp9_down_marks(slices), sizeof(uint16_t)) : NULL;
    }
    const size_t n = p.subtrees * p.d.out_subtree;
    p.d.out = aligned_bytes(n * sizeof(float));
    k->down->rows(&p.d, 0, ROWS / 8);
    for (size_t i = 0; i < n; i++) assert_true(p.d.out[i] == 0.0f);
    for (size_t e = 0; e < EXPERTS; e++) {
        walled_free(&panels[e]);
        p.expert[e].panels = NULL;
    }
    walled_free(&hs);
    free(p.d.out);
    down_problem_free(&p);
}

static void of(const struct fp9_kernels *k)
{
    static const size_t inputs[] = {8, 32, 40, 128, 136, 288}, slices[] = {1, 4, 5, 8, 9};
    for (int f = 0; f < FP9_FORMATS; f++)
        for (int edge = 0; edge < EDGES; edge++)
            for (size_t tokens = 1; tokens <= 14; tokens++) {
                for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
                    dots(k, (enum fp9_format)f, (enum edge)edge, tokens, inputs[i]);
                for (size_t i = 0; i < sizeof slices / sizeof slices[0]; i++)
                    down(k, (enum fp9_format)f, (enum edge)edge, tokens, slices[i]);
            }
}

static void panels_and_nothing_else(void **state)
{
    (void)state;
    of(&fp9_scalar);
    of(&fp9_avx2);
    of(&fp9_avx2_l2);
    if (fp9_select("avx512")) of(&fp9_avx512);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(panels_and_nothing_else)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
