/* sim.c: see sim.h. Resources are times at which they become free; a request moves them forward. */
#include "host/plan/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/plan/work.h"

#define FRAME_OVERHEAD_BYTES 38.0 // Ethernet: preamble, header, checksum, gap
#define HEADER_BYTES 60.0         // IP, UDP and the protocol's own, in every packet
#define DOWN_PART (1.0 / 3)       // of an expert's weights are in `down`, whose rows are the results

struct sim_duck {
    uint32_t domain;
    enum duck_place place;
    double bandwidth_gb_s, gflops, link_gbit_s;
    double rx_free, core_free, tx_free;
    double busy;
    const struct sim_share *at;
};

struct sim_share {  // of one bank, of one duck
    double part;    // of the slices
    double vectors; // complete subtrees, each sent as one vector
};

struct sim {
    const struct model_config *c;
    const struct forecast_inputs *in;
    struct forecast_work work;
    uint32_t ducks, domains, banks;
    struct sim_duck *duck;
    struct sim_share *share;                                           // (ducks, banks)
    double *up_tx, *up_rx, *domain_done, *domain_first, *domain_bytes; // (domains)
    double gpu_free, gpu_busy, flock_free, end;
    // the step before, for experts that both rows chose
    uint32_t step_layer;
    double step_core_start, step_core_end, step_rows;
    struct sim_stages stages; // of the last step
};

/* How many complete aligned subtrees make up [first, first + count). */
static uint32_t subtrees(uint32_t first, uint32_t count)
{
    uint32_t n = 0;
    while (count > 0) {
        uint32_t size = 1;
        while (first % (2 * size) == 0 && 2 * size <= count) size *= 2;
        first += size;
        count -= size;
        n++;
    }
    return n;
}

struct sim *sim_open(const struct model_config *c, const struct forecast_inputs *in, const struct plan *plan)
{
    struct sim *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    *s = (struct sim){.c = c,
                      .in = in,
                      .work = forecast_work(c, in),
                      .ducks = plan->ducks,
                      .domains = (uint32_t)in->domains,
                      .banks = plan->banks};
    s->duck = calloc(s->ducks, sizeof *s->duck);
    s->share = calloc((size_t)s->ducks * s->banks, sizeof *s->share);
    s->up_tx = calloc(5u * s->domains, sizeof *s->up_tx);
    if (!s->duck || !s->share || !s->up_tx) {
        sim_close(s);
        return NULL;
    }
    s->up_rx = s->up_tx + s->domains;
    s->domain_done = s->up_rx + s->domains;
    s->domain_first = s->domain_done + s->domains;
    s->domain_bytes = s->domain_first + s->domains;
    for (uint32_t i = 0; i < s->ducks; i++) {
        struct duck_hardware h = forecast_duck(in, i);
        s->duck[i].bandwidth_gb_s = h.bandwidth_gb_s;
        s->duck[i].gflops = h.gflops;
        s->duck[i].link_gbit_s = h.link_gbit_s;
        s->duck[i].place = h.place;
        s->duck[i].domain = i % s->domains;
        s->duck[i].at = &s->share[(size_t)i * s->banks];
    }
    for (uint32_t r = 0; r < plan->runs; r++) {
        const struct plan_run *run = &plan->run[r];
        struct sim_share *share = &s->share[(size_t)run->duck * s->banks + run->bank];
        share->part += run->count / (plan->bank[run->bank].width / 8.0);
        share->vectors += subtrees(run->first, run->count);
    }
    return s;
}

void sim_close(struct sim *s)
{
    if (!s) return;
    free(s->duck);
    free(s->share);
    free(s->up_tx);
    free(s);
}

static void reset(struct sim *s)
{
    for (uint32_t i = 0; i < s->ducks; i++)
        s->duck[i].rx_free = s->duck[i].core_free = s->duck[i].tx_free = s->duck[i].busy = 0;
    memset(s->up_tx, 0, 2u * s->domains * sizeof *s->up_tx);
    s->gpu_free = s->gpu_busy = s->flock_free = 0;
    s->step_layer = UINT32_MAX;
}

/* ---- the wire ---- */

static double wire_s(const struct sim *s, double payload, double gbit_s)
{
    double packets = ceil(payload / (s->in->frame_bytes - HEADER_BYTES));
    return (payload + packets * (HEADER_BYTES + FRAME_OVERHEAD_BYTES)) * 8 / (gbit_s * 1e9);
}

static double frame_s(const struct sim *s, double gbit_s)
{
    return (s->in->frame_bytes + FRAME_OVERHEAD_BYTES) * 8 / (gbit_s * 1e9);
}

/* ---- GPU and ducks ---- */

static double use_gpu(struct sim *s, double ready, double spent)
{
    s->gpu_free = fmax(ready, s->gpu_free) + spent;
    s->gpu_busy += spent;
    return s->gpu_free;
}

/* Seconds a duck needs for its part of a step. `already_read`: of its experts another row has just read. */
static double compute_s(const struct sim *s, const struct sim_duck *d, uint32_t layer, double part,
                        double rows, double already_read)
{
    const struct forecast_inputs *in = s->in;
    double weights, used; // of all rows; used: of each row
    if (layer < s->c->first_dense_layers) {
        weights = used = s->work.dense * part;
    } else {
        double always = in->shared_on_gpu > 0 ? 0 : s->c->shared_experts;
        double routed = forecast_distinct_experts(s->c, in, rows) * (1 - already_read);
        weights = (routed + always) * s->work.expert * part;
        used = (s->c->top_k + always) * s->work.expert * part;
    }
    if (d->place == DUCK_GPU)
        return forecast_dense_s(in, weights, in->checkpoint_bits / 8, rows * used / weights);
    double read = weights * in->expert_bits / 8 / (d->bandwidth_gb_s * in->memory_share * 1e9);
    double multiply = 2 * rows * used / (d->gflops * in->flop_share * 1e9);
    if (in->blocked_prefill > 0) return fmax(read, multiply);
    return rows > 1 ? read + multiply : read; // weights are unpacked first, then multiplied
}

/* An expert that two neighbouring rows chose need not be read twice while the first row's step still runs. */
static double already_read(const struct sim *s, uint32_t layer, double rows, double start)
{
    if (!(s->in->merged_lanes > 0) || layer != s->step_layer || rows != s->step_rows) return 0;
    double left = (s->step_core_end - start) / (s->step_core_end - s->step_core_start);
    double common =
        2 - forecast_distinct_experts(s->c, s->in, 2 * rows) / forecast_distinct_experts(s->c, s->in, rows);
    return fmin(fmax(left, 0), 1) * common;
}

/* The duck's part: cores, then its link. Adds to its domain's incast. */
static void duck_part(struct sim *s, struct sim_duck *d, uint32_t layer, double rows, double arrival,
                      double read)
{
    const struct forecast_inputs *in = s->in;
    const uint32_t bank = forecast_ducks_dense(in) ? layer : layer - s->c->first_dense_layers;
    double part = d->at[bank].part;
    if (part <= 0) return;
    double work = compute_s(s, d, layer, part, rows, read);
    if (d->place == DUCK_GPU) {
        d->core_free = use_gpu(s, arrival, work);
        s->domain_done[d->domain] = fmax(s->domain_done[d->domain], d->core_free);
        return;
    }
    double begin = fmax(arrival, d->core_free) + (d->place == DUCK_HOST ? 0 : in->step_gap_us * 1e-6);
    d->core_free = begin + work;
    d->busy += work;
    s->stages.gap_s = in->step_gap_us * 1e-6;
    s->stages.compute_s = fmax(s->stages.compute_s, work);
    if (d->place == DUCK_HOST) {
        s->domain_done[d->domain] = fmax(s->domain_done[d->domain], d->core_free);
        return;
    }
    double payload = d->at[bank].vectors * rows * s->c->hidden_size * in->result_bytes;
    double wire = wire_s(s, payload, d->link_gbit_s), frame = frame_s(s, d->link_gbit_s);
    double ready = in->streamed > 0 ? d->core_free - work * DOWN_PART : d->core_free;
    double sent = fmax(fmax(ready, d->tx_free) + wire, d->core_free + fmin(frame, wire));
    d->tx_free = sent;
    s->domain_first[d->domain] = fmin(s->domain_first[d->domain], sent - wire + fmin(frame, wire));
    s->domain_bytes[d->domain] += payload;
    s->domain_done[d->domain] = fmax(s->domain_done[d->domain], sent);
}

/* ---- a step ---- */

/* Broadcast at `start`; returns when the reduced result is in host memory. */
static double flock_step(struct sim *s, uint32_t layer, double rows, double start)
{
    const struct forecast_inputs *in = s->in;
    if (!(in->back_to_back > 0)) start = fmax(start, s->flock_free);
    s->stages = (struct sim_stages){.prepare_s = in->prepare_us * 1e-6};
    double sending = start + s->stages.prepare_s, latency = in->latency_us * 1e-6;
    double payload = rows * (s->c->hidden_size * in->activation_bytes + s->c->top_k * 8.0);
    double up = wire_s(s, payload, in->uplink_gbit_s);
    for (uint32_t i = 0; i < s->domains; i++) {
        s->up_tx[i] = fmax(sending, s->up_tx[i]) + up;
        s->domain_done[i] = s->domain_bytes[i] = 0;
        s->domain_first[i] = INFINITY;
    }
    double arrived = sending, core_start = INFINITY, core_end = 0;
    for (uint32_t i = 0; i < s->ducks; i++) {
        struct sim_duck *d = &s->duck[i];
        double arrival = sending;
        if (d->place == DUCK_NETWORK) {
            double first = s->up_tx[d->domain] - up + fmin(up, frame_s(s, in->uplink_gbit_s));
            d->rx_free =
                fmax(fmax(first, d->rx_free) + wire_s(s, payload, d->link_gbit_s), s->up_tx[d->domain]);
            arrival = d->rx_free + latency;
        }
        arrived = fmax(arrived, arrival);
        core_start = fmin(core_start, fmax(arrival, d->core_free));
        double read = already_read(s, layer, rows, arrival);
        duck_part(s, d, layer, rows, arrival, read);
        core_end = fmax(core_end, d->core_free);
    }
    s->step_layer = layer;
    s->step_rows = rows;
    s->step_core_start = core_start;
    s->step_core_end = core_end;
    double done = core_end, first = INFINITY;
    for (uint32_t i = 0; i < s->domains; i++) {
        first = fmin(first, s->domain_first[i]);
        if (s->domain_bytes[i] > 0) {
            double incast = wire_s(s, s->domain_bytes[i], in->uplink_gbit_s);
            s->up_rx[i] = fmax(s->domain_done[i] + frame_s(s, in->uplink_gbit_s),
                               fmax(s->domain_first[i], s->up_rx[i]) + incast);
            done = fmax(done, s->up_rx[i] + latency);
        }
        done = fmax(done, s->domain_done[i]);
    }
    // Vectors are added as they arrive; what is left at the end is the last packet of every duck.
    s->stages.reduce_s = s->ducks * in->frame_bytes / (in->host_bandwidth_gb_s * in->memory_share * 1e9);
    s->stages.send_s = arrived - sending;
    s->stages.return_s = isfinite(first) ? fmax(0, first + latency - core_end) : 0;
    s->stages.fetch_s = isfinite(first) ? done - fmax(first + latency, core_end) : 0;
    done += s->stages.reduce_s;
    s->stages.total_s = done - start;
    s->flock_free = done;
    return done;
}

struct sim_stages sim_step_alone(struct sim *s)
{
    reset(s);
    flock_step(s, s->c->first_dense_layers, 1, 0);
    return s->stages;
}

/* ---- jobs ---- */

/* One layer of a job that may enter it at `ready`. *left: when the job is through with it on the GPU. A
 * layer's fixed time is the latency of many small kernels in a row: another lane's run meanwhile. */
static double layer_end(struct sim *s, const struct sim_job *j, uint32_t layer, double ready, double *left)
{
    const struct model_config *c = s->c;
    bool dense = layer < c->first_dense_layers && !forecast_ducks_dense(s->in);
    double rows = layer == j->last ? j->last_rows : j->rows;
    *left = ready;
    if (!(rows > 0)) return ready;
    double spent = forecast_attention_s(c, s->in, rows, j->context);
    if (layer == c->layers)
        spent += forecast_dense_s(s->in, s->work.mtp_projection, forecast_linear_bytes(s->in), rows);
    if (dense) spent += forecast_dense_s(s->in, s->work.dense, forecast_linear_bytes(s->in), rows);
    *left = use_gpu(s, ready, spent) + (s->in->gpu > 0 ? s->in->gpu_layer_us * 1e-6 : 0);
    if (dense) return *left;
    double answer = flock_step(s, layer, rows, *left);
    if (s->in->shared_on_gpu > 0) {
        double shared = c->shared_experts * s->work.expert;
        answer = fmax(answer,
                      use_gpu(s, *left, forecast_dense_s(s->in, shared, forecast_linear_bytes(s->in), rows)));
    }
    return answer;
}

struct lane_state {
    uint32_t layer;
    double ready, *left; // left[layer - first]
};

/* When job i could enter its next layer; INFINITY: the one it follows is not through yet. */
static double may_enter(const struct sim_job *jobs, const struct lane_state *at, uint32_t i)
{
    const struct lane_state *a = &at[i];
    if (!jobs[i].follows || i == 0) return a->ready;
    uint32_t before = a->layer < jobs[i - 1].last ? a->layer : jobs[i - 1].last;
    if (at[i - 1].layer <= before) return INFINITY;
    return fmax(a->ready, at[i - 1].left[before - jobs[i - 1].first]);
}

/* Takes the next layer of whichever running job can start it first. */
static double run_all(struct sim *s, struct sim_job *jobs, struct lane_state *at, uint32_t count,
                      uint32_t lanes)
{
    uint32_t begun = 0, done = 0, oldest = 0; // jobs before `oldest` have ended
    double end = 0;
    for (; begun < count && begun < lanes; begun++) at[begun].ready = jobs[begun].start_s;
    while (done < count) {
        uint32_t best = UINT32_MAX;
        double when = INFINITY;
        while (oldest < begun && at[oldest].layer > jobs[oldest].last) oldest++;
        for (uint32_t i = oldest; i < begun; i++) {
            double t = at[i].layer > jobs[i].last ? INFINITY : may_enter(jobs, at, i);
            if (t < when) {
                when = t;
                best = i;
            }
        }
        struct sim_job *j = &jobs[best];
        struct lane_state *a = &at[best];
        a->ready = layer_end(s, j, a->layer, when, &a->left[a->layer - j->first]);
        if (a->layer++ < j->last) continue;
        double head_bytes = j->first == s->c->layers ? s->in->draft_bits / 8 : 2;
        j->end_s =
            j->head ? use_gpu(s, a->ready, forecast_dense_s(s->in, s->work.head, head_bytes, 1)) : a->ready;
        end = fmax(end, j->end_s);
        done++;
        if (begun < count) {
            at[begun].ready = fmax(jobs[begun].start_s, a->ready);
            begun++;
        }
    }
    return end;
}

double sim_run(struct sim *s, struct sim_job *jobs, uint32_t count, uint32_t lanes)
{
    uint32_t layers = s->c->layers + 1;
    struct lane_state *at = calloc(count, sizeof *at);
    double *left = calloc((size_t)count * layers, sizeof *left);
    s->end = -1;
    if (at && left) {
        for (uint32_t i = 0; i < count; i++)
            at[i] = (struct lane_state){.layer = jobs[i].first, .left = left + (size_t)i * layers};
        reset(s);
        s->end = run_all(s, jobs, at, count, lanes);
    }
    free(at);
    free(left);
    return s->end;
}

double sim_gpu_share(const struct sim *s)
{
    return s->gpu_busy / s->end;
}

double sim_duck_share(const struct sim *s)
{
    double most = 0;
    for (uint32_t i = 0; i < s->ducks; i++) most = fmax(most, s->duck[i].busy);
    return most / s->end;
}
