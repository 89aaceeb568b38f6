/* local.c: the transport without a network: every duck is a duck core in this process, computed by its pool.
 *
 * A submitted step waits in its lane; flock_poll() computes the waiting steps in the order of submission,
 * because the pool belongs to the engine thread (the CPU backend uses it between steps) and one job fills
 * it. A phase of a step is one pool job over the tasks of all ducks. Phases too short to be worth a job are
 * done by the caller alone. Large steps are cut into blocks of tokens, so that scratch memory stays bounded;
 * bits do not depend on that. */
#include "host/flock/transport.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "duck/wire_dtype.h"
#include "host/model/checkpoint.h"
#include "host/util/clock.h"
#include "host/util/cpus.h"
#include "host/util/log.h"
#include "host/util/numa.h"
#include "host/util/trace.h"

#define INLINE_VALUES 16384u // values a caller handles alone in about the time a job and its cold caches cost
#define REDUCE_VALUES 2048u  // hidden values a task of the reduction adds up
#define SCRATCH_LIMIT 0x1p28 // bytes of all ducks' scratch together that cut steps into blocks of tokens
#define MIN_BLOCK_TOKENS 16u // but never smaller ones than this
#define HUGE_PAGE ((size_t)2 << 20)

struct local_duck {
    struct duck_core *core;
    void *memory, *scratch;
    size_t memory_bytes, scratch_bytes;
    struct duck_work *work; // of the step being computed; NULL: holds nothing of its bank
    struct duck_stats stats;
    _Atomic uint64_t compute_ns;
    _Atomic uint64_t first_ns, last_ns; // of the step being computed, for a trace
};

/* A complete subtree of a bank: who holds it, and as which of its subtrees. */
struct local_node {
    struct local_duck *duck;
    uint32_t index, first, level;
};

struct local_bank {
    uint32_t slices, nodes;
    struct local_node *node; // (nodes) ascending by first
};

enum lane_state { LANE_FREE, LANE_WAITS, LANE_DONE };

struct local_lane {
    enum lane_state state;
    uint64_t number; // of its submission
    struct mlp_step step;
};

struct local {
    struct transport base;
    struct pool *pool;
    uint32_t hidden, ducks, banks, lanes, block_tokens;
    enum fp9_format format;
    enum wire_dtype activation, result;
    struct local_duck *duck; // (ducks)
    struct numa numa;
    struct numa_share *share; // (ducks) of the current phase's job
    struct local_bank *bank;  // (banks)
    struct local_lane *lane;  // (lanes)
    uint64_t submitted;
    float *rounded;              // (block_tokens, hidden) activations as they arrive
    struct tree_node *tree_node; // (threads, max_nodes)
    uint32_t max_nodes;

    // the block of tokens being computed
    struct mlp_step block;
    const struct local_bank *block_bank;
    struct duck_step duck_step;
    enum duck_phase phase;
    uint32_t reduce_chunks; // per token
};

/* ---- one step ---- */

static void run(struct local *l, pool_fn *fn, size_t tasks, size_t values)
{
    if (values > INLINE_VALUES) {
        pool_run(l->pool, fn, l, tasks);
    } else {
        for (size_t i = 0; i < tasks; i++) fn(l, i, 0);
    }
}

static void round_task(void *arg, size_t token, unsigned worker)
{
    (void)worker;
    struct local *l = arg;
    size_t at = token * l->hidden;
    wire_round(l->activation, l->block.x + at, l->hidden, l->rounded + at);
}

static void begin_task(void *arg, size_t duck, unsigned worker)
{
    (void)worker;
    struct local *l = arg;
    struct local_duck *d = &l->duck[duck];
    d->work = NULL;
    if (duck_core_subtrees(d->core, l->block.layer, NULL, 0) == 0) return; // holds nothing of this bank
    d->work = duck_work_begin(d->core, d->scratch, d->scratch_bytes, &l->duck_step);
    assert(d->work); // the flock has checked the step, and scratch is for the largest
}

/* From the first task that began to the last one that ended. */
static void note_span(struct local_duck *d, uint64_t start, uint64_t end)
{
    uint64_t seen = atomic_load(&d->first_ns);
    while (start < seen && !atomic_compare_exchange_weak(&d->first_ns, &seen, start)) {
    }
    seen = atomic_load(&d->last_ns);
    while (end > seen && !atomic_compare_exchange_weak(&d->last_ns, &seen, end)) {
    }
}

static void phase_task(void *arg, size_t task, unsigned worker)
{
    (void)task, (void)worker;
    struct local *l = arg;
    unsigned duck;
    uint32_t own = numa_take(l->share, l->ducks, numa_here(&l->numa), &duck);
    struct local_duck *d = &l->duck[duck];
    uint64_t start = clock_ns();
    duck_work_run(d->work, l->phase, own);
    uint64_t end = clock_ns();
    atomic_fetch_add_explicit(&d->compute_ns, end - start, memory_order_relaxed);
    if (trace_on) note_span(d, start, end);
}

static void run_phase(struct local *l, enum duck_phase phase, size_t values)
{
    uint32_t tasks = 0;
    for (uint32_t i = 0; i < l->ducks; i++) {
        struct numa_share *s = &l->share[i];
        s->tasks = l->duck[i].work ? duck_work_tasks(l->duck[i].work, phase) : 0;
        s->next = 0;
        tasks += s->tasks;
    }
    l->phase = phase;
    run(l, phase_task, tasks, values);
}

/* One token's chunk of the output: what every duck would send, rounded as it would travel, added by the tree.
 */
static void reduce_task(void *arg, size_t task, unsigned worker)
{
    struct local *l = arg;
    size_t token = task / l->reduce_chunks, from = task % l->reduce_chunks * REDUCE_VALUES;
    size_t n = l->hidden - from < REDUCE_VALUES ? l->hidden - from : REDUCE_VALUES;
    size_t at = token * l->hidden + from;
    const struct local_bank *bank = l->block_bank;
    struct tree_node *node = l->tree_node + (size_t)worker * l->max_nodes;
    for (uint32_t i = 0; i < bank->nodes; i++) {
        const struct local_node *from_node = &bank->node[i];
        float *values = duck_work_partial(from_node->duck->work, from_node->index) + at;
        wire_round(l->result, values, n, values);
        node[i] = (struct tree_node){.first = from_node->first, .level = from_node->level, .values = values};
    }
    memcpy(l->block.y + at, tree_reduce(node, bank->nodes, bank->slices, n), n * sizeof(float));
}

static void count_step(struct local *l, bool first_block)
{
    for (uint32_t i = 0; i < l->ducks; i++) {
        struct local_duck *d = &l->duck[i];
        if (!d->work) continue;
        uint64_t experts, bytes;
        duck_work_reads(d->work, &experts, &bytes);
        d->stats.steps += first_block;
        if (trace_on) {
            trace_span(TRACE_DUCK, i, "compute", atomic_load(&d->first_ns), atomic_load(&d->last_ns),
                       l->block.layer, 0, l->block.tokens);
            d->first_ns = UINT64_MAX;
            d->last_ns = 0;
        }
        d->stats.expert_reads += experts;
        d->stats.expert_bytes += bytes;
    }
}

static void run_block(struct local *l, const struct mlp_step *step, uint32_t first, uint32_t tokens)
{
    size_t values = (size_t)tokens * l->hidden, choices = (size_t)tokens * step->top_k;
    struct mlp_step *b = &l->block;
    *b = *step;
    b->tokens = tokens;
    b->x += (size_t)first * l->hidden;
    b->y += (size_t)first * l->hidden;
    if (step->top_k > 0) {
        b->ids += (size_t)first * step->top_k;
        b->weights += (size_t)first * step->top_k;
    }
    l->block_bank = &l->bank[step->layer];
    if (l->activation != WIRE_F32) run(l, round_task, tokens, values);
    l->duck_step = (struct duck_step){.bank = step->layer,
                                      .tokens = tokens,
                                      .top_k = step->top_k,
                                      .x = l->activation == WIRE_F32 ? b->x : l->rounded,
                                      .ids = b->ids,
                                      .weights = b->weights};
    run(l, begin_task, l->ducks, choices * l->ducks);
    run_phase(l, DUCK_PREPARE, values * l->ducks);
    run_phase(l, DUCK_HIDDEN, SIZE_MAX);
    run_phase(l, DUCK_DOWN_ROWS, SIZE_MAX);
    run(l, reduce_task, (size_t)tokens * l->reduce_chunks, values * l->block_bank->nodes);
    count_step(l, first == 0);
}

static void run_step(struct local *l, struct local_lane *lane)
{
    for (uint32_t t = 0; t < lane->step.tokens; t += l->block_tokens) {
        uint32_t left = lane->step.tokens - t;
        run_block(l, &lane->step, t, left < l->block_tokens ? left : l->block_tokens);
    }
    lane->state = LANE_DONE;
}

static int local_submit(struct transport *t, uint32_t lane, const struct mlp_step *step, struct error *err)
{
    struct local *l = (struct local *)t;
    struct local_lane *ln = &l->lane[lane];
    if (ln->state != LANE_FREE) return error_set(err, -EBUSY, "lane %u has a step already", lane);
    *ln = (struct local_lane){.state = LANE_WAITS, .number = l->submitted++, .step = *step};
    return 0;
}

static struct local_lane *oldest_waiting(struct local *l)
{
    struct local_lane *oldest = NULL;
    for (uint32_t i = 0; i < l->lanes; i++) {
        struct local_lane *ln = &l->lane[i];
        if (ln->state == LANE_WAITS && (!oldest || ln->number < oldest->number)) oldest = ln;
    }
    return oldest;
}

static int local_poll(struct transport *t, uint32_t lane, bool wait, struct error *err)
{
    struct local *l = (struct local *)t;
    struct local_lane *ln = &l->lane[lane];
    if (ln->state == LANE_FREE) return error_set(err, -EINVAL, "lane %u has no step", lane);
    while (ln->state == LANE_WAITS) {
        run_step(l, oldest_waiting(l));
        if (!wait) break;
    }
    if (ln->state != LANE_DONE) return 0;
    ln->state = LANE_FREE;
    return 1;
}

static void local_stats(const struct transport *t, uint32_t duck, struct duck_stats *out)
{
    const struct local_duck *d = &((const struct local *)t)->duck[duck];
    *out = d->stats;
    out->compute_ns = atomic_load(&d->compute_ns);
}

/* ---- weights ---- */

int transport_bad_weight(const struct transport_matrix *m, enum fp9_format format, int why, uint64_t where,
                         struct error *err)
{
    const struct weight *w = m->weight;
    if (why == DUCK_BAD_SCALE) {
        float scale;
        memcpy(&scale, w->scales + where * sizeof scale, sizeof scale);
        return error_set(err, -EINVAL,
                         "%s: %s: scale %llu is %g, it must be a positive normal number below 2^%d", w->file,
                         w->name, (unsigned long long)where, (double)scale, duck_scale_end(format));
    }
    return error_set(
        err, -EINVAL, "%s: %s: element [%llu, %llu] is not a number that experts can be computed with",
        w->file, w->name, (unsigned long long)(where / w->cols), (unsigned long long)(where % w->cols));
}

static int local_load(struct transport *t, const struct transport_matrix *m, struct error *err)
{
    struct local *l = (struct local *)t;
    const struct duck_tensor tensor = transport_tensor(m, l->hidden);
    for (uint32_t i = 0; i < l->ducks; i++) {
        uint64_t where = 0;
        int rc = duck_core_load(l->duck[i].core, m->bank, m->expert, m->column, &tensor, &where);
        if (rc != 0) return transport_bad_weight(m, l->format, rc, where, err);
    }
    return 0;
}

/* ---- opening ---- */

/* Zeros, in 2 MiB pages where the system grants them: with small ones address translation costs a quarter of
 * a step that comes from DRAM. Such pages begin at multiples of their size only. Nothing is touched here. */
static void *map(size_t bytes)
{
    bool huge = bytes >= HUGE_PAGE;
    size_t room = bytes + (huge ? HUGE_PAGE : 0);
    uint8_t *p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (!huge) return p;
    size_t before = -(uintptr_t)p % HUGE_PAGE, page = (size_t)sysconf(_SC_PAGESIZE);
    size_t end = (before + bytes + page - 1) / page * page;
    if (before > 0) munmap(p, before);
    if (end < room) munmap(p + end, room - end);
    madvise(p + before, bytes, MADV_HUGEPAGE); // without, it is only slower
    return p + before;
}

/* What a duck has lies on the node whose threads compute it; where nodes outnumber ducks, on all of them. */
static void place(struct local *l, uint32_t duck, void *memory, size_t bytes)
{
    if (l->numa.nodes == 1) return;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    int rc = l->ducks < l->numa.nodes ? numa_spread(&l->numa, memory, whole)
                                      : numa_bind(&l->numa, l->share[duck].node, memory, whole);
    if (rc != 0)
        log_notice("duck %u: its memory comes from any NUMA node, which is slower: mbind: %s", duck,
                   strerror(-rc));
}

/* MemAvailable in bytes; UINT64_MAX: unknown. */
static uint64_t available_memory(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f) return UINT64_MAX;
    char line[128];
    unsigned long long kb;
    uint64_t bytes = UINT64_MAX;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1) bytes = kb * 1024;
    }
    fclose(f);
    return bytes;
}

/* Memory for all ducks' weights is counted before any is taken. */
static int check_memory(const struct local *l, const struct transport_options *o, struct duck_run *run,
                        struct error *err)
{
    uint64_t needed = 0, available = available_memory();
    for (uint32_t i = 0; i < l->ducks; i++) {
        const struct duck_shape shape = plan_shape(o->plan, i, run);
        needed += duck_core_bytes(&shape);
    }
    if (needed <= available) return 0;
    return error_set(err, -ENOMEM,
                     "the experts need %.1f GB of memory as local ducks, this machine has %.1f GB available",
                     (double)needed / 1e9, (double)available / 1e9);
}

static int open_duck(struct local *l, uint32_t duck, const struct transport_options *o, struct duck_run *run,
                     struct error *err)
{
    struct local_duck *d = &l->duck[duck];
    const struct duck_shape shape = plan_shape(o->plan, duck, run);
    d->memory_bytes = duck_core_bytes(&shape);
    d->memory = map(d->memory_bytes);
    if (d->memory) place(l, duck, d->memory, d->memory_bytes);
    d->core = d->memory ? duck_core_init_zeroed(d->memory, d->memory_bytes, &shape, fp9_select(NULL)) : NULL;
    if (!d->core) return error_set(err, -ENOMEM, "no memory for duck %u: %zu bytes", duck, d->memory_bytes);
    d->stats.weight_bytes = d->memory_bytes;
    d->first_ns = UINT64_MAX;
    for (uint32_t i = 0; i < shape.runs; i++) d->stats.slices += shape.run[i].count;
    return 0;
}

static int open_ducks(struct local *l, const struct transport_options *o, struct error *err)
{
    struct duck_run *run = calloc(o->plan->runs, sizeof *run);
    if (!run) return error_set(err, -ENOMEM, "no memory for %u runs of slices", o->plan->runs);
    int rc = check_memory(l, o, run, err);
    for (uint32_t i = 0; rc == 0 && i < l->ducks; i++) rc = open_duck(l, i, o, run, err);
    free(run);
    return rc;
}

/* The largest block of tokens whose scratch is reasonable, and the scratch for it. */
static int open_scratch(struct local *l, const struct transport_options *o, struct error *err)
{
    for (l->block_tokens = o->max_tokens;; l->block_tokens = (l->block_tokens + 1) / 2) {
        double bytes = 0;
        for (uint32_t i = 0; i < l->ducks; i++) {
            l->duck[i].scratch_bytes =
                duck_step_scratch_bytes(l->duck[i].core, l->block_tokens, o->max_top_k);
            bytes += (double)l->duck[i].scratch_bytes;
        }
        if (bytes <= SCRATCH_LIMIT || l->block_tokens <= MIN_BLOCK_TOKENS) break;
    }
    for (uint32_t i = 0; i < l->ducks; i++) {
        l->duck[i].scratch = map(l->duck[i].scratch_bytes);
        if (l->duck[i].scratch) {
            place(l, i, l->duck[i].scratch, l->duck[i].scratch_bytes);
            continue;
        }
        return error_set(err, -ENOMEM, "no memory for the scratch of duck %u: %zu bytes", i,
                         l->duck[i].scratch_bytes);
    }
    l->rounded = calloc((size_t)l->block_tokens * l->hidden, sizeof *l->rounded);
    return l->rounded ? 0
                      : error_set(err, -ENOMEM, "no memory for activations of %u tokens", l->block_tokens);
}

static int node_by_first(const void *a, const void *b)
{
    const struct local_node *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

static int open_bank(struct local *l, uint32_t bank, const struct plan *p, struct error *err)
{
    struct local_bank *b = &l->bank[bank];
    b->slices = p->bank[bank].width / FP9_LANES;
    b->node = calloc(b->slices, sizeof *b->node);
    struct duck_subtree *subtree = calloc(b->slices, sizeof *subtree);
    if (!b->node || !subtree) {
        free(subtree);
        return error_set(err, -ENOMEM, "no memory for the tree of layer %u", bank);
    }
    for (uint32_t i = 0; i < l->ducks; i++) {
        uint32_t n = duck_core_subtrees(l->duck[i].core, bank, subtree, b->slices);
        for (uint32_t s = 0; s < n; s++) {
            b->node[b->nodes++] = (struct local_node){
                .duck = &l->duck[i], .index = s, .first = subtree[s].first, .level = subtree[s].level};
        }
    }
    free(subtree);
    qsort(b->node, b->nodes, sizeof *b->node, node_by_first);
    if (b->nodes > l->max_nodes) l->max_nodes = b->nodes;
    return 0;
}

static void local_close(struct transport *t)
{
    struct local *l = (struct local *)t;
    for (uint32_t i = 0; l->duck && i < l->ducks; i++) {
        if (l->duck[i].memory) munmap(l->duck[i].memory, l->duck[i].memory_bytes);
        if (l->duck[i].scratch) munmap(l->duck[i].scratch, l->duck[i].scratch_bytes);
    }
    for (uint32_t i = 0; l->bank && i < l->banks; i++) free(l->bank[i].node);
    free(l->duck);
    free(l->share);
    free(l->bank);
    free(l->lane);
    free(l->rounded);
    free(l->tree_node);
    free(l);
}

static int local_fill(struct local *l, const struct transport_options *o, struct error *err)
{
    const char *missing = fp9_cpu_missing();
    if (missing)
        return error_set(err, -ENOTSUP, "this CPU has no %s, which the experts' arithmetic needs", missing);
    l->duck = calloc(l->ducks, sizeof *l->duck);
    l->bank = calloc(l->banks, sizeof *l->bank);
    l->lane = calloc(l->lanes, sizeof *l->lane);
    l->share = calloc(l->ducks, sizeof *l->share);
    if (!l->duck || !l->share || !l->bank || !l->lane)
        return error_set(err, -ENOMEM, "no memory for %u ducks", l->ducks);
    uint8_t allowed[NUMA_MAX_CPUS];
    cpus_allowed(allowed, sizeof allowed);
    int rc = numa_read(&l->numa, NUMA_DIR, allowed, err);
    if (rc != 0) return rc;
    for (uint32_t i = 0; i < l->ducks; i++) l->share[i].node = numa_node_of(&l->numa, i, l->ducks);
    rc = open_ducks(l, o, err);
    if (rc == 0) rc = open_scratch(l, o, err);
    for (uint32_t i = 0; rc == 0 && i < l->banks; i++) rc = open_bank(l, i, o->plan, err);
    if (rc != 0) return rc;
    l->tree_node = calloc((size_t)pool_threads(l->pool) * l->max_nodes, sizeof *l->tree_node);
    return l->tree_node ? 0 : error_set(err, -ENOMEM, "no memory for trees of %u nodes", l->max_nodes);
}

static int local_open(struct transport **out, const struct transport_options *o, struct error *err)
{
    struct local *l = calloc(1, sizeof *l);
    if (!l) return error_set(err, -ENOMEM, "no memory for local ducks");
    l->base.ops = &transport_local;
    l->pool = o->pool;
    l->hidden = o->plan->hidden;
    l->ducks = o->plan->ducks;
    l->banks = o->plan->banks;
    l->format = o->plan->format;
    l->lanes = o->lanes;
    l->activation = o->activation;
    l->result = o->result;
    l->reduce_chunks = (l->hidden + REDUCE_VALUES - 1) / REDUCE_VALUES;
    int rc = local_fill(l, o, err);
    if (rc != 0) {
        local_close(&l->base);
        return rc;
    }
    *out = &l->base;
    return 0;
}

const struct transport_ops transport_local = {
    .name = "local",
    .open = local_open,
    .close = local_close,
    .load = local_load,
    .submit = local_submit,
    .poll = local_poll,
    .stats = local_stats,
};
