/* work.c: see work.h. Matrix by matrix, in the order of a layer. */
#include "host/plan/work.h"

#include <math.h>

struct forecast_work forecast_work(const struct model_config *c, const struct forecast_inputs *in)
{
    double hidden = c->hidden_size, heads = c->heads, q = c->q_lora_rank, kv = c->kv_lora_rank;
    double dense = c->first_dense_layers < c->layers ? c->first_dense_layers : c->layers;
    double mtp = in->mtp > 0 && c->mtp_layers > 0 ? 1 : 0;
    struct forecast_work w = {
        .attention = hidden * q + q * heads * (c->qk_nope_dim + c->qk_rope_dim) +
                     hidden * (kv + c->qk_rope_dim) + kv * heads * (c->qk_nope_dim + c->v_dim) +
                     heads * c->v_dim * hidden,
        .router = hidden * c->experts,
        .dense = 3 * hidden * c->dense_width,
        .expert = 3 * hidden * c->expert_width,
        .head = hidden * c->vocab_size,
        .mtp_projection = mtp * 2 * hidden * hidden,
        .moe_layers = c->layers - dense + mtp,
        .attention_layers = c->layers + mtp,
        .kv_values = kv + c->qk_rope_dim,
    };
    if (in->indexer > 0 && c->index_topk > 0) {
        w.indexer = q * c->index_heads * c->index_head_dim + hidden * c->index_head_dim +
                    2 * hidden * c->index_heads; // the last one is bf16
        w.kv_values += c->index_head_dim;
    }
    return w;
}

double forecast_distinct_experts(const struct model_config *c, const struct forecast_inputs *in, double rows)
{
    double distinct = c->experts * (1 - pow(1 - (double)c->top_k / c->experts, rows));
    return in->held_experts > 0 ? fmin(distinct, fmax(in->held_experts, c->top_k)) : distinct;
}

static double device_s(const struct forecast_inputs *in, double bytes, double flops)
{
    if (in->gpu > 0) return fmax(bytes / (in->gpu_bandwidth_gb_s * 1e9), flops / (in->gpu_tflops * 1e12));
    return fmax(bytes / (in->host_bandwidth_gb_s * in->memory_share * 1e9),
                flops / (in->host_gflops * in->flop_share * 1e9));
}

double forecast_dense_s(const struct forecast_inputs *in, double weights, double bytes_per_weight,
                        double rows)
{
    return device_s(in, weights * bytes_per_weight, 2 * rows * weights);
}

/* Up to index_topk positions nothing is chosen: of the indexer only the keys are made. */
struct forecast_load forecast_attention(const struct model_config *c, const struct forecast_inputs *in,
                                        double rows, double context)
{
    struct forecast_work w = forecast_work(c, in);
    double seen = context, scored = 0, weights = w.attention + w.indexer;
    if (w.indexer > 0 && context > c->index_topk) {
        scored = context;
        seen = c->index_topk;
    } else if (w.indexer > 0) {
        weights = w.attention + (double)c->hidden_size * c->index_head_dim;
    }
    double folded = in->gpu > 0 ? 0 : (double)c->kv_lora_rank * c->heads * (c->qk_nope_dim + c->v_dim);
    double bytes = (weights - folded) * forecast_linear_bytes(in) + 2 * folded + 2 * w.router; // bf16
    double values = seen * (c->kv_lora_rank + c->qk_rope_dim) + scored * c->index_head_dim;
    double key_flops = 2 * rows * seen * c->heads * (2.0 * c->kv_lora_rank + c->qk_rope_dim) +
                       2 * rows * scored * c->index_heads * c->index_head_dim;
    return (struct forecast_load){bytes + values * in->kv_bytes, 2 * rows * (weights + w.router), key_flops};
}

/* On cores many heads share a key out of the cache: its operations come on top of reading weights. */
double forecast_attention_s(const struct model_config *c, const struct forecast_inputs *in, double rows,
                            double context)
{
    const struct forecast_load load = forecast_attention(c, in, rows, context);
    if (in->gpu > 0) return device_s(in, load.bytes, load.flops + load.key_flops);
    return device_s(in, load.bytes, load.flops) + device_s(in, 0, load.key_flops);
}
