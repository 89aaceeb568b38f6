/* cpu_rows.c: what is done row by row around the products: cutting into tasks, adding answers, probing. */
#include "host/backend/cpu/cpu.h"
#include "host/backend/cpu/norm.h"

struct rows_job {
    struct cpu_backend *b;
    struct cpu_lane *l;
    cpu_row_fn *fn;
    size_t first, end, chunk;
};

static void rows_task(void *arg, size_t task, unsigned worker)
{
    (void)worker;
    const struct rows_job *j = arg;
    size_t first = j->first + task * j->chunk, end = first + j->chunk;
    for (size_t r = first; r < end && r < j->end; r++) j->fn(j->b, j->l, r);
}

void cpu_rows(struct cpu_backend *b, struct cpu_lane *l, cpu_row_fn *fn, size_t first, size_t rows,
              double work)
{
    struct rows_job j = {b, l, fn, first, first + rows, 8};
    parallel(b->pool, rows_task, &j, (rows + j.chunk - 1) / j.chunk, work * (double)rows);
}

int cpu_bad_row(const struct cpu_backend *b, size_t first, size_t end)
{
    for (size_t r = first; r < end; r++)
        if (b->s.bad[r]) return (int)r;
    return -1;
}

void cpu_add_answer(struct cpu_backend *b, struct cpu_lane *l, size_t row)
{
    size_t n = b->c->hidden_size;
    if (l->answered) norm_add(l->h + row * n, l->y + row * n, n);
}

void cpu_probe_rows(struct cpu_backend *b, struct cpu_lane *l, const char *name, uint32_t layer,
                    const float *f, const int32_t *i, size_t stride, size_t n)
{
    if (!b->probe.row) return;
    for (uint32_t r = 0; r < l->job.tokens; r++)
        b->probe.row(b->probe.ctx, name, layer, l->job.position + r, f ? f + r * stride : NULL,
                     i ? i + r * stride : NULL, n);
}
