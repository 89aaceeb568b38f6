/* cpu_ends.c: embedding (or the MTP layer's combination) before the layers; final norm and logits after. */
#include <errno.h>
#include <string.h>

#include "host/backend/cpu/cpu.h"
#include "host/backend/cpu/norm.h"

static void embed_row(struct cpu_backend *b, struct cpu_lane *l, size_t row)
{
    rope_position(&b->rope, l->job.position + (uint32_t)row, l->cosines + row * b->rope.pairs,
                  l->sines + row * b->rope.pairs);
    weight_row(&b->embed, (uint64_t)l->ids[row], l->h + row * b->c->hidden_size);
}

/* Embedding half first, whatever the paper prints. */
static void pair_row(struct cpu_backend *b, struct cpu_lane *l, size_t row)
{
    size_t n = b->c->hidden_size;
    float *pair = b->s.pair + row * 2 * n;
    rope_position(&b->rope, l->job.position + (uint32_t)row, l->cosines + row * b->rope.pairs,
                  l->sines + row * b->rope.pairs);
    weight_row(&b->mtp.embed, (uint64_t)l->ids[row], pair);
    const float *hidden = kv_hidden(l->kv, l->job.position + (uint32_t)row);
    bool ok = norm_rms(pair, b->mtp.enorm, b->c->rms_norm_eps, n, pair);
    ok &= norm_rms(hidden, b->mtp.hnorm, b->c->rms_norm_eps, n, pair + n);
    b->s.bad[row] = !ok;
    if (linear_prepared(&b->mtp.eh_proj)) b->fp9->prepare(pair, 2 * n, b->s.pairs + row * 2 * n);
}

int cpu_embed(struct cpu_backend *b, struct cpu_lane *l, struct error *err)
{
    size_t n = b->c->hidden_size, tokens = l->job.tokens;
    if (l->job.kind == BACKEND_MAIN) {
        cpu_rows(b, l, embed_row, 0, tokens, (double)n + 64.0 * (double)b->rope.pairs);
        return 0;
    }
    cpu_rows(b, l, pair_row, 0, tokens, 8.0 * (double)n);
    int row = cpu_bad_row(b, 0, tokens);
    if (row >= 0)
        return error_set(err, -EDOM, "layer %u (MTP): its input at position %u is not finite", b->c->layers,
                         l->job.position + (uint32_t)row);
    const struct product p = {&b->mtp.eh_proj, cpu_input(&b->mtp.eh_proj, b->s.pair, b->s.pairs), 2 * n, l->h,
                              n};
    products_run(b->pool, &p, 1, tokens);
    return 0;
}

static void final_row(struct cpu_backend *b, struct cpu_lane *l, size_t row)
{
    size_t n = b->c->hidden_size;
    bool main_job = l->job.kind == BACKEND_MAIN;
    const struct linear *head = main_job ? &b->head : b->mtp.head;
    float *h = l->h + row * n, *x = l->x + row * n;
    cpu_add_answer(b, l, row);
    b->s.bad[row] = !norm_rms(h, main_job ? b->final_norm : b->mtp.head_norm, b->c->rms_norm_eps, n, x);
    if (linear_prepared(head)) b->fp9->prepare(x, n, b->s.xs + row * n);
    if (main_job && b->with_mtp)
        memcpy(kv_hidden_slot(l->kv, l->job.position + (uint32_t)row),
               BACKEND_MTP_HIDDEN_AFTER_FINAL_NORM ? x : h, n * sizeof(float));
}

int cpu_finish(struct cpu_backend *b, struct cpu_lane *l, struct error *err)
{
    size_t n = b->c->hidden_size, tokens = l->job.tokens, from = l->job.logits_from;
    bool main_job = l->job.kind == BACKEND_MAIN;
    const struct linear *head = main_job ? &b->head : b->mtp.head;
    cpu_rows(b, l, final_row, l->first, tokens - l->first, 4.0 * (double)n);
    int row = cpu_bad_row(b, l->first, tokens);
    if (row >= 0)
        return error_set(err, -EDOM, "layer %u: the residual stream leaving it at position %u is not finite",
                         l->layer - 1, l->job.position + (uint32_t)row);
    if (main_job) {
        cpu_probe_rows(b, l, "hidden", b->c->layers, l->h, NULL, n, n);
        cpu_probe_rows(b, l, "final_norm", b->c->layers, l->x, NULL, n, n);
    } else {
        cpu_probe_rows(b, l, "mtp_hidden", b->c->layers, l->h, NULL, n, n);
    }
    if (from >= tokens) return 0;
    if (!main_job && l->job.best_only) {
        for (size_t i = from; i < tokens; i++)
            l->best[i - from] = draft_head_best(&b->mtp.draft, l->x + i * n, b->pool);
        return 0;
    }
    const struct product p = {head, cpu_input(head, l->x, b->s.xs) + from * n, n, l->logits,
                              8 * head->panels};
    products_run(b->pool, &p, 1, tokens - from);
    return 0;
}
