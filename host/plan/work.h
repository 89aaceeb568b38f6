/* work.h: the bytes and operations of a model, all derived from its configuration: none is a constant here.
 */
#ifndef DUCKD_HOST_PLAN_WORK_H
#define DUCKD_HOST_PLAN_WORK_H

#include "host/model/config.h"
#include "host/plan/inputs.h"

/* Weights are counted; one is one byte on the GPU (fp8) where nothing else is said. */
struct forecast_work {
    double attention, indexer; // weights of one layer
    double router;             // of one MoE layer
    double dense;              // of one dense layer
    double expert;             // of one expert
    double head;               // of the output head (bf16), and of the embedding
    double mtp_projection;     // of the MTP layer's input
    double moe_layers;         // MTP layer included, if used
    double attention_layers;   // likewise
    double kv_values;          // cached per position and layer
};
struct forecast_work forecast_work(const struct model_config *c, const struct forecast_inputs *in);

/* Distinct routed experts that `rows` tokens choose, if every choice were independent and uniform; at most as
 * many as are held. */
double forecast_distinct_experts(const struct model_config *c, const struct forecast_inputs *in, double rows);

/* Of a weight of a linear layer where attention is computed: fp8, or fp9 on the host's cores. */
static inline double forecast_linear_bytes(const struct forecast_inputs *in)
{
    return in->gpu > 0 ? 1 : 9.0 / 8;
}

/* Without a GPU the ducks have the dense layers, too, and rows whose output nobody reads leave out the last
 * layer. */
static inline bool forecast_ducks_dense(const struct forecast_inputs *in)
{
    return in->gpu < 1;
}

/* Of one layer of `rows` positions that see `context` on average. */
struct forecast_load {
    double bytes, flops, key_flops; // key_flops: with what is cached, beside those with weights
};
struct forecast_load forecast_attention(const struct model_config *c, const struct forecast_inputs *in,
                                        double rows, double context);

/* Seconds of the GPU (of the host, without one) by bytes and operations alone. */
double forecast_attention_s(const struct model_config *c, const struct forecast_inputs *in, double rows,
                            double context);
double forecast_dense_s(const struct forecast_inputs *in, double weights, double bytes_per_weight,
                        double rows);

#endif
