/* duck_work.c: one step: tokens grouped by expert, cut into tasks. */
#include "duck/duck_core_internal.h"

#include <string.h>

enum {
    INLINE_PREPARE = 16384, // floats that begin() prepares itself: handing out a task costs more
    PREPARE_FLOATS = 32768, // of one task
    TASK_BYTES = 24576,     // decoded weights of one task: 1-2 us, ten times what handing it out costs
    DOWN_BYTES = 131072,    // the same for DOWN, whose reading is cut by expert: long pieces from each
    VISIT_QUADS = 4,        // of a DOWN task at least, as far as the kernel takes them in one pass
    DOWN_TASKS = 56,        //   and as they make enough tasks to busy every core to the end
    TOKENS_PER_DECODE = 4,  // so many tokens of arithmetic cost about as much as decoding the weights
    CHUNK_TOKENS = 96,      // of one dot: decoding is 4 % of the work
    ROW_GAP = 16,    // floats between rows of activations: one block of many rows, a power of two apart,
                     // would share a few sets of the L1
    FEW_SLICES = 2,  // of a dot with few tokens: four panels are the chains that one or two tokens need
    MOST_SLICES = 8, // of a dot with more: a block of their activations is used for all of them
    MANY_PAIRS = 3,  // that is from so many tokens on
    CHUNK_FLOATS = CHUNK_TOKENS * 8 * FEW_SLICES, // outputs of one dot
    MANY_TASKS = 256,                             // enough to busy every core to the end
    DECODE = TOKENS_PER_DECODE - 1,
};

/* An expert that somebody chose; its (expert, token) pairs are [pair, pair + pairs). */
struct active {
    uint32_t expert, pair, pairs;
};

/* A run's share of the step. */
struct part {
    const struct duck__run *run;
    struct fp9_down down;
    struct fp9_down_expert *expert; // (actives)
    uint32_t *task;                 // (actives + 1) first HIDDEN task of each active expert
    uint32_t *slices;               // (actives) slices of one of its tasks
    float *hs;                      // fp9_down_hs_floats()
    uint32_t row_panels;            // of one DOWN task
    uint32_t first_hidden, first_down, subtree;
};

/* Where the task stands that is run in pieces. */
struct piece {
    int begun;
    uint32_t slice, pair, block; // HIDDEN: next
    struct fp9_down_walk walk;   // DOWN
    float g[CHUNK_FLOATS] __attribute__((aligned(64)));
    float u[CHUNK_FLOATS] __attribute__((aligned(64)));
};

struct duck_work {
    const struct duck_core *d;
    const float *x;
    float *xs; // (tokens, xs_stride)
    size_t xs_stride;
    uint32_t bank, tokens, parts, actives, pairs, experts;
    uint32_t prepare_rows; // of one PREPARE task; 0: done
    uint32_t tasks[DUCK_PHASES];
    uint64_t read_experts, read_bytes;
    struct active *active; // (actives)
    uint32_t *pair_end;    // (experts) while grouping
    uint32_t *token;       // (pairs)
    float *weight;         // (pairs)
    struct part *part;     // (parts)
    float *partial;        // (subtrees, tokens, hidden)
    struct piece *piece;
};

/* Sizes and, when the arena has memory, places everything that depends on bank, tokens and top_k. */
static struct duck_work *lay_out(struct duck__arena *a, const struct duck_core *d, uint32_t bank,
                                 uint32_t tokens, uint32_t top_k)
{
    uint32_t end, first = duck__runs(d, bank, &end), experts = duck__experts(d, bank);
    uint32_t pairs = tokens * (top_k + d->bank[bank].always);
    uint32_t actives = experts < pairs ? experts : pairs;
    struct duck_work *w = duck__take(a, sizeof *w), at = {0};
    at.xs_stride = d->hidden + ROW_GAP;
    at.xs = duck__take(a, tokens * at.xs_stride * sizeof(float));
    at.active = duck__take(a, actives * sizeof *at.active);
    at.pair_end = duck__take(a, experts * sizeof *at.pair_end);
    at.token = duck__take(a, pairs * sizeof *at.token);
    at.weight = duck__take(a, pairs * sizeof *at.weight);
    at.part = duck__take(a, (end - first) * sizeof *at.part);
    for (uint32_t i = first; i < end; i++) {
        struct part p = {.run = &d->run[i]};
        p.expert = duck__take(a, actives * sizeof *p.expert);
        p.task = duck__take(a, (actives + 1) * sizeof *p.task);
        p.slices = duck__take(a, actives * sizeof *p.slices);
        p.hs = duck__take(a, fp9_down_hs_floats(pairs, p.run->count) * sizeof(float));
        if (w) at.part[i - first] = p;
    }
    uint32_t subtrees = duck_core_subtrees(d, bank, NULL, 0);
    at.partial = duck__take(a, (size_t)subtrees * tokens * d->hidden * sizeof(float));
    at.piece = duck__take(a, sizeof *at.piece);
    void *cells = duck__take(a, FP9_DOWN_CELLS);
    if (!w) return NULL;
    at.piece->begun = 0;
    at.piece->walk.cells = cells;
    at.d = d;
    at.bank = bank;
    at.tokens = tokens;
    at.parts = end - first;
    at.pairs = pairs;
    at.experts = experts;
    *w = at;
    return w;
}

size_t duck_step_scratch_bytes(const struct duck_core *d, uint32_t max_tokens, uint32_t max_top_k)
{
    size_t most = 0;
    for (uint32_t bank = 0; bank < d->banks; bank++) {
        struct duck__arena a = {0};
        lay_out(&a, d, bank, max_tokens, d->bank[bank].routed ? max_top_k : 0);
        if (a.used > most) most = a.used;
    }
    return most;
}

static int step_is_possible(const struct duck_core *d, const struct duck_step *s)
{
    if (s->bank >= d->banks || s->tokens == 0) return 0;
    uint32_t routed = d->bank[s->bank].routed;
    if (s->top_k > routed) return 0;
    for (uint32_t t = 0; t < s->tokens; t++) {
        const int32_t *id = s->ids + (size_t)t * s->top_k;
        for (uint32_t k = 0; k < s->top_k; k++)
            if (id[k] < 0 || (uint32_t)id[k] >= routed || (k && id[k] <= id[k - 1])) return 0;
    }
    return 1;
}

/* Counting sort of (expert, token) pairs by expert; tokens stay ascending. */
static void group_by_expert(struct duck_work *w, const struct duck_step *s)
{
    uint32_t routed = w->d->bank[s->bank].routed, *end = w->pair_end, pair = 0;
    memset(end, 0, w->experts * sizeof *end);
    for (size_t i = 0; i < (size_t)s->tokens * s->top_k; i++) end[s->ids[i]]++;
    for (uint32_t e = 0; e < w->experts; e++) {
        uint32_t pairs = e < routed ? end[e] : s->tokens;
        end[e] = pair;
        if (pairs) w->active[w->actives++] = (struct active){e, pair, pairs};
        pair += pairs;
    }
    for (uint32_t t = 0; t < s->tokens; t++) {
        for (uint32_t k = 0; k < s->top_k; k++) {
            size_t i = (size_t)t * s->top_k + k;
            uint32_t q = end[s->ids[i]]++;
            w->token[q] = t;
            w->weight[q] = s->weights[i];
        }
        for (uint32_t e = routed; e < w->experts; e++) {
            uint32_t q = end[e]++;
            w->token[q] = t;
            w->weight[q] = 1.0f;
        }
    }
}

/* How many units of `bytes` of weights, used by `tokens` tokens, make a task of about `task_bytes`; within
 * 1 .. most. */
static uint32_t units_per_task(size_t task_bytes, size_t bytes, uint64_t tokens, uint32_t most)
{
    uint64_t cost = bytes * (TOKENS_PER_DECODE - 1 + tokens) / TOKENS_PER_DECODE;
    uint64_t units = (task_bytes + cost - 1) / (cost ? cost : 1);
    if (units > most) units = most;
    return units ? (uint32_t)units : 1;
}

/* Slices of a dot: many while their outputs for all pairs stay in L1. */
static uint32_t chunk_slices(uint32_t pairs)
{
    uint32_t slices = FEW_SLICES;
    while (pairs >= MANY_PAIRS && slices < MOST_SLICES && 2 * slices * 8 * pairs <= CHUNK_FLOATS) slices *= 2;
    return slices;
}

static void plan_hidden(struct duck_work *w, struct part *p)
{
    const struct duck__run *r = p->run;
    uint32_t tasks = 0, most = w->actives * r->count / MANY_TASKS;
    p->first_hidden = w->tasks[DUCK_HIDDEN];
    for (uint32_t i = 0; i < w->actives; i++) {
        uint32_t pairs = w->active[i].pairs, together = chunk_slices(pairs);
        uint32_t slices = units_per_task(TASK_BYTES, 2 * r->gate_up_panel, pairs, r->count);
        while (pairs >= MANY_PAIRS && together > most && together > 1) together /= 2;
        if (pairs < MANY_PAIRS && w->d->k->one_slice) together = 1;
        if (slices < together) slices = together;
        p->task[i] = tasks;
        p->slices[i] = slices;
        tasks += (r->count + slices - 1) / slices;
    }
    p->task[w->actives] = tasks;
    w->tasks[DUCK_HIDDEN] += tasks;
}

static void plan_down(struct duck_work *w, struct part *p)
{
    const struct duck_core *d = w->d;
    const struct duck__run *r = p->run;
    for (uint32_t i = 0; i < w->actives; i++) {
        const struct active *a = &w->active[i];
        p->expert[i] = (struct fp9_down_expert){
            .panels = duck__panel(r, a->expert, DUCK_DOWN, 0),
            .scales = duck__scales(d, r, a->expert, DUCK_DOWN),
            .marks = d->format == FP9_E4M3 ? duck__marks(d, r, a->expert, DUCK_DOWN) : NULL,
            .column = r->column[a->expert],
            .pair = a->pair,
            .pairs = a->pairs,
        };
    }
    p->down = (struct fp9_down){
        .expert = p->expert,
        .experts = w->actives,
        .first_slice = r->first,
        .slices = r->count,
        .format = d->format,
        .scale_stride = r->column_blocks,
        .tokens = w->tokens,
        .token = w->token,
        .pairs = w->pairs,
        .hs = p->hs,
        .out = w->partial + (size_t)p->subtree * w->tokens * d->hidden,
        .out_subtree = (size_t)w->tokens * d->hidden,
        .out_token = d->hidden,
    };
    uint64_t per_expert = w->actives ? w->pairs / w->actives : 0;
    uint32_t groups = (uint32_t)duck__quads(d->hidden);
    uint32_t most = units_per_task(DOWN_BYTES, r->down_quad * w->actives, per_expert, groups);
    uint32_t visit = groups / DOWN_TASKS, pass = (uint32_t)fp9_down_quads(r->count, w->tokens);
    if (visit > VISIT_QUADS) visit = VISIT_QUADS;
    if (visit > pass) visit = pass;
    if (most < visit) most = visit;
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): it is 1 at least
    uint32_t tasks = (groups + most - 1) / most; // of one size: a small last one would leave a core idle
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): no width is below 8, so there is a group
    p->row_panels = FP9_QUAD * ((groups + tasks - 1) / tasks);
    p->first_down = w->tasks[DUCK_DOWN_ROWS];
    w->tasks[DUCK_DOWN_ROWS] += (d->hidden / 8 + p->row_panels - 1) / p->row_panels;
}

static void prepare_rows(const struct duck_work *w, uint32_t first, uint32_t end)
{
    for (uint32_t t = first; t < end; t++) {
        size_t at = (size_t)t * w->d->hidden;
        w->d->k->prepare(w->x + at, w->d->hidden, w->xs + t * w->xs_stride);
    }
}

struct duck_work *duck_work_begin(const struct duck_core *d, void *scratch, size_t bytes,
                                  const struct duck_step *step)
{
    if (!step_is_possible(d, step)) return NULL;
    struct duck__arena count = {0}, a = {.memory = scratch};
    lay_out(&count, d, step->bank, step->tokens, step->top_k);
    if (count.used > bytes) return NULL;
    struct duck_work *w = lay_out(&a, d, step->bank, step->tokens, step->top_k);
    w->x = step->x;
    group_by_expert(w, step);
    uint32_t subtree = 0;
    for (uint32_t i = 0; i < w->parts; i++) {
        struct part *p = &w->part[i];
        p->subtree = subtree;
        for (uint32_t s = 0; s < p->run->count; subtree++)
            s += 1u << fp9_subtree_level(p->run->first + s, p->run->count - s);
        plan_hidden(w, p);
        plan_down(w, p);
        w->read_experts += w->actives;
        w->read_bytes += (uint64_t)w->actives * p->run->weight_bytes;
    }
    if ((size_t)w->tokens * d->hidden <= INLINE_PREPARE) {
        prepare_rows(w, 0, w->tokens);
    } else {
        w->prepare_rows = PREPARE_FLOATS / d->hidden + 1;
        w->tasks[DUCK_PREPARE] = (w->tokens + w->prepare_rows - 1) / w->prepare_rows;
    }
    return w;
}

uint32_t duck_work_tasks(const struct duck_work *w, enum duck_phase phase)
{
    return w->tasks[phase];
}

/* A HIDDEN task: an expert's slices [first, end) of a run. */
struct hidden {
    const struct part *part;
    const struct active *active;
    uint32_t first, end;
};

/* Slices [first, first + count) of it, for pairs [pair, pair + pairs). */
struct chunk {
    uint32_t first, count, pair, pairs;
};

/* Gate and up of blocks [block, block + blocks) of the inputs, added to what g and u hold unless these are
 * the first. */
static void dots(const struct duck_work *w, const struct hidden *h, const struct chunk *c, uint32_t block,
                 uint32_t blocks, float *g, float *u)
{
    const struct duck_core *d = w->d;
    const struct duck__run *r = h->part->run;
    uint32_t expert = h->active->expert;
    size_t from = (size_t)block * FP9_BLOCK, end = from + (size_t)blocks * FP9_BLOCK;
    struct fp9_matrix m[2];
    for (int i = 0; i < 2; i++)
        m[i] = (struct fp9_matrix){
            .panels = duck__panel(r, expert, i ? DUCK_UP : DUCK_GATE, 0) + block * fp9_block_bytes(d->format),
            .panel_stride = 2 * r->gate_up_panel,
            .scales = duck__scales(d, r, expert, i ? DUCK_UP : DUCK_GATE) + block,
            .scale_stride = d->hidden_blocks,
            .inputs = (end < d->hidden ? end : d->hidden) - from,
            .panel_count = r->count,
            .first_output = r->column[expert],
            .continues = block > 0,
            .format = d->format,
            .mark_stride = d->hidden_blocks,
        };
    for (int i = 0; i < 2 && d->format == FP9_E4M3; i++)
        m[i].marks = duck__marks(d, r, expert, i ? DUCK_UP : DUCK_GATE) + block;
    struct fp9_rows x = {w->xs + from, w->xs_stride, w->token + c->pair, c->pairs};
    d->k->dot2(&m[0], &m[1], c->first, c->count, &x, g, u, (size_t)8 * c->count);
}

static void silus(const struct duck_work *w, const struct hidden *h, const struct chunk *c, const float *g,
                  const float *u)
{
    for (uint32_t i = 0, each; i < c->count; i += each) {
        uint32_t s = c->first + i, strip = FP9_DOWN_STRIP - s % FP9_DOWN_STRIP;
        each = c->count - i < strip ? c->count - i : strip;
        float *hs = h->part->hs + fp9_down_hs(w->pairs, c->pair, s);
        for (uint32_t q = 0; q < c->pairs; q++) {
            size_t at = 8 * ((size_t)q * c->count + i);
            w->d->k->expert(g + at, u + at, w->weight[c->pair + q], 8 * each, hs + q * fp9_down_hs(1, 1, 0));
        }
    }
}

/* The chunk that begins at slice `slice` and the expert's pair `pair`. */
static struct chunk chunk_at(const struct hidden *h, uint32_t slice, uint32_t pair)
{
    uint32_t slices = h->end - slice, pairs = h->active->pairs - pair, most = chunk_slices(h->active->pairs);
    return (struct chunk){.first = slice,
                          .count = slices < most ? slices : most,
                          .pair = h->active->pair + pair,
                          .pairs = pairs < CHUNK_TOKENS ? pairs : CHUNK_TOKENS};
}

static struct hidden find_hidden(const struct duck_work *w, uint32_t task)
{
    const struct part *p = w->part;
    while (p + 1 < w->part + w->parts && task >= p[1].first_hidden) p++;
    task -= p->first_hidden;
    uint32_t low = 0, high = w->actives; // the last active expert whose first task is not beyond `task`
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (p->task[middle] <= task)
            low = middle;
        else
            high = middle;
    }
    uint32_t first = (task - p->task[low]) * p->slices[low], end = first + p->slices[low];
    return (struct hidden){p, &w->active[low], first, end < p->run->count ? end : p->run->count};
}

static void run_hidden(const struct duck_work *w, uint32_t task)
{
    float g[CHUNK_FLOATS] __attribute__((aligned(64)));
    float u[CHUNK_FLOATS] __attribute__((aligned(64)));
    struct hidden h = find_hidden(w, task);
    for (uint32_t s = h.first; s < h.end; s += chunk_slices(h.active->pairs))
        for (uint32_t q = 0; q < h.active->pairs; q += CHUNK_TOKENS) {
            struct chunk c = chunk_at(&h, s, q);
            dots(w, &h, &c, 0, (uint32_t)w->d->hidden_blocks, g, u);
            silus(w, &h, &c, g, u);
        }
}

static void use(size_t *work, size_t done)
{
    *work = *work > done ? *work - done : 0;
}

static int hidden_piece(const struct duck_work *w, uint32_t task, size_t *work)
{
    struct piece *p = w->piece;
    struct hidden h = find_hidden(w, task);
    if (!p->begun) {
        p->slice = h.first;
        p->pair = p->block = 0;
    }
    struct chunk c = chunk_at(&h, p->slice, p->pair);
    uint32_t all = (uint32_t)w->d->hidden_blocks, left = all - p->block;
    uint32_t each = c.count * 16 * FP9_BLOCK * (c.pairs + DECODE);
    uint32_t blocks = *work / each < left ? (uint32_t)(*work / each) : left;
    if (blocks < 1) blocks = 1;
    if (c.pairs == 1) blocks = left; // its task is short, and reads memory best in one go
    dots(w, &h, &c, p->block, blocks, p->g, p->u);
    use(work, (size_t)blocks * each);
    p->block += blocks;
    if (p->block < all) return 0;
    silus(w, &h, &c, p->g, p->u);
    p->block = 0;
    p->pair += c.pairs;
    if (p->pair < h.active->pairs) return 0;
    p->pair = 0;
    p->slice += c.count;
    return p->slice >= h.end;
}

/* A DOWN task's part and row panels. */
static const struct part *find_down(const struct duck_work *w, uint32_t task, uint32_t *first,
                                    uint32_t *count)
{
    const struct part *p = w->part;
    while (p + 1 < w->part + w->parts && task >= p[1].first_down) p++;
    *first = (task - p->first_down) * p->row_panels;
    uint32_t left = w->d->hidden / 8 - *first;
    *count = left < p->row_panels ? left : p->row_panels;
    return p;
}

static void run_down(const struct duck_work *w, uint32_t task)
{
    uint32_t first, count;
    const struct part *p = find_down(w, task, &first, &count);
    w->d->k->down->rows(&p->down, first, count);
}

static int down_piece(const struct duck_work *w, uint32_t task, size_t *work)
{
    uint32_t first, count;
    const struct part *p = find_down(w, task, &first, &count);
    struct fp9_down_walk *walk = &w->piece->walk;
    if (!w->piece->begun)
        *walk = (struct fp9_down_walk){.first = first, .count = count, .cells = walk->cells};
    return w->d->k->down->some_rows(&p->down, walk, work);
}

static void run_prepare(const struct duck_work *w, uint32_t task)
{
    uint32_t first = task * w->prepare_rows, end = first + w->prepare_rows;
    prepare_rows(w, first, end < w->tokens ? end : w->tokens);
}

/* The work with other kernels: a few hundred bytes to copy, where a task moves tens of thousands. */
struct with_kernels {
    struct duck_core core;
    struct duck_work work;
};

static const struct duck_work *with_kernels(struct with_kernels *to, const struct duck_work *w,
                                            const struct fp9_kernels *k)
{
    to->core = *w->d;
    to->core.k = k;
    to->work = *w;
    to->work.d = &to->core;
    return &to->work;
}

void duck_work_run_with(const struct duck_work *work, const struct fp9_kernels *k, enum duck_phase phase,
                        uint32_t task)
{
    struct with_kernels with;
    const struct duck_work *w = with_kernels(&with, work, k);
    if (phase == DUCK_HIDDEN) {
        run_hidden(w, task);
    } else if (phase == DUCK_DOWN_ROWS) {
        run_down(w, task);
    } else {
        run_prepare(w, task);
    }
}

int duck_work_run_piece(const struct duck_work *whole, const struct fp9_kernels *k, enum duck_phase phase,
                        uint32_t task, size_t *work)
{
    struct with_kernels with;
    const struct duck_work *w = with_kernels(&with, whole, k);
    int over = 1;
    if (phase == DUCK_HIDDEN) {
        over = hidden_piece(w, task, work);
    } else if (phase == DUCK_DOWN_ROWS) {
        over = down_piece(w, task, work);
    } else {
        run_prepare(w, task);
        use(work, *work); // PREPARE_FLOATS take as long
    }
    w->piece->begun = !over;
    return over;
}

void duck_work_run(struct duck_work *w, enum duck_phase phase, uint32_t task)
{
    duck_work_run_with(w, w->d->k, phase, task);
}

float *duck_work_partial(const struct duck_work *w, uint32_t subtree)
{
    return w->partial + (size_t)subtree * w->tokens * w->d->hidden;
}

uint32_t duck_work_row_tasks(const struct duck_work *w, uint32_t subtree, uint32_t first, uint32_t count,
                             uint32_t *end)
{
    const struct part *p = w->part;
    while (p + 1 < w->part + w->parts && subtree >= p[1].subtree) p++;
    *end = p->first_down + ((first + count + 7) / 8 + p->row_panels - 1) / p->row_panels;
    return p->first_down + first / 8 / p->row_panels;
}

uint32_t duck_work_max_row_tasks(const struct duck_core *d)
{
    uint32_t most = 0, end;
    for (uint32_t bank = 0; bank < d->banks; bank++) {
        uint32_t first = duck__runs(d, bank, &end);
        if (end - first > most) most = end - first;
    }
    return most * (uint32_t)duck__quads(d->hidden);
}

void duck_work_reads(const struct duck_work *w, uint64_t *experts, uint64_t *bytes)
{
    *experts = w->read_experts;
    *bytes = w->read_bytes;
}
