/* forecast.c: see forecast.h. */
#include "host/plan/forecast.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "host/plan/work.h"

#define GIB 1073741824.0
#define MOST_CHUNKS 4096.0
#define HOST_PART 0.75  // of host memory may hold experts; the rest is for the system and the page cache
#define GPU_PART 0.95   // of GPU memory may be filled; the rest is for activations and workspace
#define MTP_WINDOW 32.0 // positions of a prompt that the CPU backend's MTP layer is given

static double lanes_of(const struct forecast_inputs *in)
{
    return in->dual_lane > 0 ? 2 : 1;
}

/* Bytes of everything but routed experts on the GPU (without one, in the host's memory). */
static double attention_bytes(const struct model_config *c, const struct forecast_inputs *in)
{
    struct forecast_work w = forecast_work(c, in);
    double shared = in->shared_on_gpu > 0 ? w.moe_layers * c->shared_experts * w.expert : 0;
    double cache = (in->prompt_tokens + in->output_tokens) * w.kv_values * w.attention_layers * in->kv_bytes;
    double dense = forecast_ducks_dense(in) ? 0 : c->first_dense_layers * w.dense;
    return w.attention_layers * (w.attention + w.indexer) + 2 * w.moe_layers * w.router + dense +
           w.mtp_projection + 2 * w.head + shared + cache;
}

/* ---- slices ---- */

/* The plan counts in a format that is there; other numbers of bits are in proportion to it. */
static enum fp9_format format_of(const struct forecast_inputs *in)
{
    return in->expert_bits == 8 ? FP9_E4M3 : FP9_FP9;
}

static double format_bits(const struct forecast_inputs *in)
{
    return format_of(in) == FP9_E4M3 ? 8 : 9;
}

/* What a duck may hold, in bytes as the plan counts them. */
static double room(const struct model_config *c, const struct forecast_inputs *in, uint32_t duck)
{
    struct duck_hardware h = forecast_duck(in, duck);
    double bytes = h.memory_gib * GIB;
    if (h.place == DUCK_HOST) bytes *= HOST_PART;
    if (h.place == DUCK_GPU)
        return fmax(bytes * GPU_PART - attention_bytes(c, in), 1) * format_bits(in) / in->checkpoint_bits;
    return bytes * format_bits(in) / in->expert_bits;
}

/* Of all experts, likewise. */
static double all_bytes(const struct model_config *c, const struct forecast_inputs *in)
{
    struct forecast_work w = forecast_work(c, in);
    return w.moe_layers * (c->experts + (in->shared_on_gpu > 0 ? 0 : c->shared_experts)) * w.expert *
           format_bits(in) / 8;
}

/* The flock's plan of its layers. `limited`: by what a duck may hold. */
static int make_plan(struct plan *out, const struct model_config *c, const struct forecast_inputs *in,
                     bool limited, struct error *err)
{
    struct model_config moe = *c;
    if (!forecast_ducks_dense(in)) {
        moe.layers = c->layers - c->first_dense_layers;
        moe.first_dense_layers = 0;
    }
    if (in->shared_on_gpu > 0) moe.shared_experts = 0;
    uint32_t all = forecast_ducks(in);
    struct plan_duck *duck = calloc(all, sizeof *duck);
    if (!duck) return error_set(err, -ENOMEM, "no memory for %u ducks", all);
    double others = 0;
    for (uint32_t i = 0; i < all; i++) {
        struct duck_hardware h = forecast_duck(in, i);
        duck[i].weight = h.bandwidth_gb_s;
        duck[i].memory_bytes = limited ? (uint64_t)room(c, in, i) : UINT64_MAX;
        if (h.place == DUCK_GPU) { // far quicker than its memory is large: it gets what fits
            double part = fmin(room(c, in, i) / all_bytes(c, in), 0.5);
            duck[i].weight = others * part / (1 - part);
            duck[i].memory_bytes = UINT64_MAX;
        }
        others += duck[i].weight;
    }
    int rc = plan_make(out, &moe, format_of(in), in->mtp > 0 && c->mtp_layers > 0, duck, all, err);
    free(duck);
    return rc;
}

/* ---- memory ---- */

static double duck_bytes(const struct plan *p, const struct forecast_inputs *in, uint32_t duck)
{
    double bytes = 0;
    for (uint32_t r = 0; r < p->runs; r++)
        if (p->run[r].duck == duck)
            bytes += (double)plan_run_bytes(p->format, p->hidden, &p->bank[p->run[r].bank], p->run[r].count);
    return bytes * in->expert_bits / format_bits(in);
}

static void add_fit(struct forecast *f, const char *where, double needs, double has)
{
    f->fit[f->fits_count++] = (struct forecast_fit){where, needs / 1e9, has / 1e9};
    f->fits = f->fits && needs <= has;
}

/* `whole`: what the ducks of the network hold. */
static void judge_fit(struct forecast *f, const struct model_config *c, const struct forecast_inputs *in,
                      const struct plan *p, const struct plan *whole)
{
    struct forecast_work w = forecast_work(c, in);
    double attention = attention_bytes(c, in);
    double fullest = 0, most = 1, host = 2 * w.head; // the embedding is looked up on the host
    for (uint32_t i = 0; i < (uint32_t)in->ducks; i++) {
        double needs = duck_bytes(whole, in, i), has = forecast_duck(in, i).memory_gib * GIB;
        if (needs * most <= fullest * has) continue;
        fullest = needs;
        most = has;
    }
    for (uint32_t i = (uint32_t)in->ducks; i < forecast_ducks(in); i++) {
        double bytes = duck_bytes(p, in, i);
        if (forecast_duck(in, i).place == DUCK_HOST)
            host += bytes / HOST_PART;
        else
            attention += bytes * in->checkpoint_bits / in->expert_bits;
    }
    f->fits = true;
    if (in->gpu > 0)
        add_fit(f, "GPU", attention, in->gpu_memory_gib * GIB);
    else
        host += attention;
    add_fit(f, "fullest duck", fullest, most);
    add_fit(f, "host", host, in->host_memory_gib * GIB);
}

/* ---- start ---- */

/* Disk, uplinks and the ducks' links work at the same time; the slowest decides. */
static void cold_start(struct forecast *f, const struct model_config *c, const struct forecast_inputs *in,
                       const struct plan *p)
{
    struct forecast_work w = forecast_work(c, in);
    double experts = w.moe_layers * (c->experts + c->shared_experts) * w.expert * in->checkpoint_bits / 8;
    double rest = w.attention_layers * (w.attention + w.indexer) + 2 * w.moe_layers * w.router +
                  c->first_dense_layers * w.dense + w.mtp_projection + 4 * w.head;
    double most = 0, all = 0;
    for (uint32_t i = 0; i < (uint32_t)in->ducks; i++) {
        double sent = duck_bytes(p, in, i) * in->checkpoint_bits / in->expert_bits;
        most = fmax(most, sent / forecast_duck(in, i).link_gbit_s);
        all += sent;
    }
    f->experts_gb = experts / 1e9;
    f->checkpoint_gb = (experts + rest) / 1e9;
    f->disk_s = f->checkpoint_gb / in->disk_gb_s;
    f->uplink_s = all * 8 / (in->domains * in->uplink_gbit_s * 1e9);
    f->link_s = most * 8 / 1e9;
    f->cold_start_s = fmax(f->disk_s, fmax(f->uplink_s, f->link_s));
}

/* ---- prefill ---- */

/* Of the rows from .. to those whose last layer somebody reads: the MTP layer, or the output head. */
static double wanted_rows(const struct forecast_inputs *in, bool mtp, double from, double to)
{
    double first = in->prompt_tokens - (mtp ? MTP_WINDOW : 1);
    return fmax(0, to - fmax(from, first));
}

/* Without a GPU the MTP layer gets its rows when the first token is there. */
static int prefill(struct forecast *f, const struct model_config *c, const struct forecast_inputs *in,
                   const struct plan *p, struct error *err)
{
    struct sim *s = sim_open(c, in, p);
    uint32_t chunks = (uint32_t)ceil(in->prompt_tokens / in->prefill_chunk);
    struct sim_job *job = calloc(chunks, sizeof *job);
    if (!job || !s) {
        free(job);
        sim_close(s);
        return error_set(err, -ENOMEM, "no memory for %u chunks", chunks);
    }
    bool mtp = in->mtp > 0 && c->mtp_layers > 0, cpu = in->gpu < 1;
    for (uint32_t i = 0; i < chunks; i++) {
        double from = i * in->prefill_chunk, to = fmin(from + in->prefill_chunk, in->prompt_tokens);
        job[i] = (struct sim_job){.rows = to - from,
                                  .context = (from + to) / 2,
                                  .last_rows = cpu ? wanted_rows(in, mtp, from, to) : to - from,
                                  .last = mtp && !cpu ? c->layers : c->layers - 1,
                                  .head = i + 1 == chunks,
                                  .follows = true};
    }
    // One prompt's chunks overlap only where steps may: the reference computes one after the other.
    double end = sim_run(s, job, chunks, in->back_to_back > 0 ? (uint32_t)lanes_of(in) : 1);
    free(job);
    sim_close(s);
    if (end < 0) return error_set(err, -ENOMEM, "no memory for %u chunks", chunks);
    f->ttft_s = end;
    f->prefill_tok_s = in->prompt_tokens / end;
    return 0;
}

/* ---- decode ---- */

/* `rows` in so many jobs. */
static double verify_ms(struct sim *s, const struct model_config *c, double context, uint32_t rows,
                        uint32_t jobs, uint32_t lanes)
{
    struct sim_job job[2];
    for (uint32_t i = 0; i < jobs; i++)
        job[i] = (struct sim_job){.rows = (double)rows / jobs,
                                  .context = context,
                                  .last_rows = (double)rows / jobs,
                                  .last = c->layers - 1,
                                  .head = true,
                                  .follows = true};
    return 1e3 * sim_run(s, job, jobs, lanes);
}

/* The MTP layer over `rows` new positions in so many jobs, then its head. */
static double mtp_ms(struct sim *s, const struct model_config *c, const struct forecast_inputs *in,
                     double context, double rows, uint32_t jobs)
{
    struct sim_job job[2];
    for (uint32_t i = 0; i < jobs; i++)
        job[i] = (struct sim_job){.rows = rows / jobs,
                                  .context = context,
                                  .last_rows = rows / jobs,
                                  .first = c->layers,
                                  .last = c->layers,
                                  .head = i + 1 == jobs,
                                  .follows = true};
    return 1e3 * sim_run(s, job, jobs, (uint32_t)lanes_of(in));
}

/* Of the prompt's last chunk: what the MTP layer gets when the first token is there. */
static double mtp_prompt_rows(const struct forecast_inputs *in)
{
    double rows = fmod(in->prompt_tokens - 1, in->prefill_chunk) + 1;
    return in->gpu > 0 ? rows : fmin(MTP_WINDOW, in->prompt_tokens);
}

static void decode(struct forecast *f, struct sim *s, const struct model_config *c,
                   const struct forecast_inputs *in)
{
    double context = in->prompt_tokens + in->output_tokens / 2, a = in->acceptance;
    f->mtp_prompt_ms = 0;
    if (in->mtp > 0 && c->mtp_layers > 0) {
        f->serial_pair_ms = verify_ms(s, c, context, 2, 2, 1);
        f->pair_ms = verify_ms(s, c, context, 2, in->one_job > 0 ? 1 : 2, (uint32_t)lanes_of(in));
        f->duck_share = sim_duck_share(s);
        f->gpu_share = sim_gpu_share(s);
        f->fast_ms = mtp_ms(s, c, in, context, 2, in->merged > 0 ? 1 : 2); // together, or one after the other
        f->round_ms = f->pair_ms + a * f->fast_ms + (1 - a) * mtp_ms(s, c, in, context, 1, 1);
        f->mtp_prompt_ms = mtp_ms(s, c, in, in->prompt_tokens, mtp_prompt_rows(in), 1);
        f->tpot_ms = f->round_ms / (1 + a);
    } else {
        f->serial_pair_ms = f->pair_ms = f->fast_ms = NAN;
        f->tpot_ms = f->round_ms = verify_ms(s, c, context, 1, 1, 1);
        f->duck_share = sim_duck_share(s);
        f->gpu_share = sim_gpu_share(s);
    }
    f->decode_tok_s = 1e3 / f->tpot_ms;
}

/* ---- what decides ---- */

static int tpot_of(double *tpot_ms, const struct model_config *c, const struct forecast_inputs *in,
                   const struct plan *p, struct error *err)
{
    struct forecast f;
    struct sim *s = sim_open(c, in, p);
    if (!s) return error_set(err, -ENOMEM, "no memory for a forecast of %g ducks", in->ducks);
    decode(&f, s, c, in);
    sim_close(s);
    *tpot_ms = f.tpot_ms;
    return 0;
}

static int find_bottleneck(struct forecast *f, const struct model_config *c, const struct forecast_inputs *in,
                           const struct plan *p, struct error *err)
{
    f->bottleneck_gain = 0;
    for (size_t i = 0; i < forecast_key_count; i++) {
        const struct input_key *k = &forecast_keys[i];
        struct forecast_inputs better = *in;
        double *value = forecast_input(&better, k), tpot = 0;
        bool rate = false, time = false;
        if (k->group == INPUT_HARDWARE) {
            rate = k->name[0] != 'f' && !k->whole; // everything but counts and the frame
            time = k->offset == offsetof(struct forecast_inputs, latency_us);
        } else if (k->group == INPUT_SOFTWARE) {
            time = k->name[0] == 'g' || k->name[0] == 's'; // gpu_layer_us, step_gap_us
        }
        if (!rate && !time) continue;
        *value = time ? *value / 2 : *value * 2;
        int rc = tpot_of(&tpot, c, &better, p, err);
        if (rc) return rc;
        if (f->tpot_ms / tpot <= f->bottleneck_gain) continue;
        f->bottleneck_gain = f->tpot_ms / tpot;
        f->bottleneck = k->name;
    }
    return 0;
}

/* Who holds what. With copies the ducks of the network hold everything, and prefill is theirs alone. */
struct plans {
    struct plan decode, whole, *prefill;
    struct forecast_inputs alone; // the inputs of prefill
    bool room;                    // as much memory as is needed
};

static int make_one(struct plan *out, bool *room, const struct model_config *c,
                    const struct forecast_inputs *in, struct error *err)
{
    if (make_plan(out, c, in, true, NULL) == 0) return 0;
    *room = false; // what it would do with memory enough
    return make_plan(out, c, in, false, err);
}

static int make_plans(struct plans *p, const struct model_config *c, const struct forecast_inputs *in,
                      struct error *err)
{
    *p = (struct plans){.prefill = &p->decode, .alone = *in, .room = true};
    int rc = make_one(&p->decode, &p->room, c, in, err);
    if (rc || !(in->copies > 0)) return rc;
    p->alone.host_duck = p->alone.gpu_duck = 0;
    p->prefill = &p->whole;
    rc = make_one(&p->whole, &p->room, c, &p->alone, err);
    if (rc) plan_free(&p->decode);
    return rc;
}

int forecast_make(struct forecast *out, const struct model_config *c, const struct forecast_inputs *in,
                  struct error *err)
{
    *out = (struct forecast){0};
    int rc = forecast_inputs_check(in, err);
    if (rc) return rc;
    if (c->experts == 0 || c->first_dense_layers >= c->layers)
        return error_set(err, -EINVAL, "the model has no layer with experts: %u dense of %u layers",
                         c->first_dense_layers, c->layers);
    if (in->prompt_tokens + in->output_tokens > c->max_positions)
        return error_set(err, -ERANGE,
                         "prompt_tokens %.0f and output_tokens %.0f exceed the model's %u positions",
                         in->prompt_tokens, in->output_tokens, c->max_positions);
    if (in->prompt_tokens / in->prefill_chunk > MOST_CHUNKS)
        return error_set(err, -ERANGE,
                         "prompt_tokens %.0f in chunks of prefill_chunk %.0f are more than %.0f",
                         in->prompt_tokens, in->prefill_chunk, MOST_CHUNKS);
    struct plans p;
    rc = make_plans(&p, c, in, err);
    if (rc) return rc;
    struct sim *s = sim_open(c, in, &p.decode);
    if (s) {
        judge_fit(out, c, in, &p.decode, p.prefill);
        out->fits = out->fits && p.room;
        cold_start(out, c, in, p.prefill);
        out->stages = sim_step_alone(s);
        out->duck_step_mb = out->stages.compute_s * in->duck_bandwidth_gb_s * in->memory_share * 1e3;
        rc = prefill(out, c, &p.alone, p.prefill, err);
        if (!rc) decode(out, s, c, in);
        if (!rc) rc = find_bottleneck(out, c, in, &p.decode, err);
        sim_close(s);
    } else {
        rc = error_set(err, -ENOMEM, "no memory for a forecast of %g ducks", in->ducks);
    }
    plan_free(&p.decode);
    if (p.prefill != &p.decode) plan_free(p.prefill);
    return rc;
}
