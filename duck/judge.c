/* judge.c: steps: putting them together, asking for what is missing, computing them one after the other.
 *
 * Step s lives in slot s % slots. The host sends step s only when step s - slots is complete on its side, so
 * a newer step may always take the slot of an older one that has been computed. */
#include "duck/duck_internal.h"

#include <string.h>

enum { NAK_MIN_NS = 1000000, NAK_MAX_NS = 100000000 };

void duck__judge_lay_out(struct duck *d, uint8_t *base, uint64_t *at)
{
    struct judge *j = &d->judge;
    const struct wire_open *o = &d->session.terms;
    const struct duck_core *core = d->store.core;
    const struct duck_shape *shape = &d->store.shape;
    j->room = wire_step_layout(shape->hidden, o->max_tokens, o->max_top_k, WIRE_F32, o->payload).bytes;
    if (j->room == 0) j->room = (uint64_t)o->payload * 65535;
    j->scratch_bytes = duck_step_scratch_bytes(core, o->max_tokens, o->max_top_k);
    j->max_result_fragments = 0;
    for (uint32_t b = 0; b < shape->banks; b++) {
        uint32_t subtrees = duck_core_subtrees(core, b, NULL, 0);
        uint32_t n = wire_result_plan(shape->hidden, o->max_tokens, subtrees, WIRE_F32, o->payload).fragments;
        if (subtrees && n == 0) n = 65535; // so many tokens are too many, but fewer may fill the numbers
        if (n > j->max_result_fragments) j->max_result_fragments = n;
    }
    j->max_row_tasks = duck_work_max_row_tasks(core);
    for (uint32_t i = 0; i < o->step_slots; i++) {
        struct step_slot s = {.data = carve(base, at, j->room)};
        s.bitmap = carve(base, at, (j->room / o->payload + 8) / 8);
        s.x = carve(base, at, (uint64_t)o->max_tokens * shape->hidden * sizeof *s.x);
        s.scratch = carve(base, at, j->scratch_bytes);
        s.row_task_done = carve(base, at, j->max_row_tasks);
        s.again = carve(base, at, j->max_result_fragments / 8 + 1);
        j->slot[i] = s;
    }
    j->slots = base ? o->step_slots : 0;
    j->any = 0;
    j->running = NULL;
}

void duck__judge_reset(struct duck *d)
{
    struct judge *j = &d->judge;
    for (uint32_t i = 0; i < j->slots; i++) j->slot[i].state = STEP_EMPTY;
    j->any = 0;
    j->running = NULL;
}

/* ---- receiving ---- */

static uint64_t gap_ns(const struct duck *d)
{
    return (uint64_t)d->session.terms.gap_us * 1000;
}

/* Fragments are missing although later ones, or later steps, have come: ask soon. */
static void gap_seen(struct duck *d, struct step_slot *s)
{
    uint64_t at = d->now + gap_ns(d);
    if (s->nak_at == 0 || s->naks == 0) s->nak_at = s->nak_at && s->nak_at < at ? s->nak_at : at;
}

/* Nothing more has come for a while, though nothing proves a loss: ask later. */
static void silence(struct duck *d, struct step_slot *s)
{
    uint64_t wait = 4 * gap_ns(d);
    s->nak_at = d->now + (wait < NAK_MIN_NS ? NAK_MIN_NS : wait);
}

static void clear_slot(struct step_slot *s, enum step_state state, uint32_t sequence)
{
    s->state = state;
    s->sequence = sequence;
    s->fragments = s->have = s->highest = s->sent = s->again_left = s->naks = 0;
    s->status = WIRE_STEP_QUEUED;
    s->nak_at = 0;
    s->done_sent = 0;
    s->work = NULL;
    s->plan = (struct wire_result_plan){0};
}

static int may_be_replaced(const struct step_slot *s)
{
    return s->state == STEP_EMPTY || s->state == STEP_EXPECTED || s->state == STEP_RECEIVING ||
           s->state == STEP_COMPUTED;
}

/* A step number not seen before: steps in between were lost, and whatever is incomplete has a gap. */
static void new_highest(struct duck *d, uint32_t sequence)
{
    struct judge *j = &d->judge;
    uint32_t from = j->any ? j->highest + 1 : sequence;
    if (sequence - from >= j->slots) from = sequence - j->slots + 1;
    for (uint32_t n = from; n != sequence; n++) {
        struct step_slot *s = &j->slot[n % j->slots];
        if (!may_be_replaced(s)) continue;
        clear_slot(s, STEP_EXPECTED, n);
        gap_seen(d, s);
    }
    for (uint32_t i = 0; i < j->slots; i++)
        if (j->slot[i].state == STEP_RECEIVING) gap_seen(d, &j->slot[i]);
    j->highest = sequence;
    j->any = 1;
}

/* The slot of a step that a fragment belongs to; NULL: not wanted. */
static struct step_slot *slot_for(struct duck *d, const struct wire_header *h)
{
    struct judge *j = &d->judge;
    struct step_slot *s = &j->slot[h->sequence % j->slots];
    if (s->state != STEP_EMPTY && s->sequence == h->sequence) return s;
    if (j->any && (int32_t)(h->sequence - j->highest) <= -(int32_t)j->slots) {
        d->stats.late++;
        return NULL;
    }
    if (s->state != STEP_EMPTY && (int32_t)(h->sequence - s->sequence) < 0) {
        d->stats.late++;
        return NULL;
    }
    if (!may_be_replaced(s)) { // the host is ahead of its window
        d->stats.unexpected++;
        return NULL;
    }
    if (!j->any || (int32_t)(h->sequence - j->highest) > 0) new_highest(d, h->sequence);
    clear_slot(s, STEP_RECEIVING, h->sequence);
    return s;
}

static int ids_ascend(const struct duck_step *s, uint32_t routed)
{
    for (uint32_t t = 0; t < s->tokens; t++)
        for (uint32_t k = 0; k < s->top_k; k++) {
            const int32_t *id = s->ids + (size_t)t * s->top_k + k;
            if (*id < 0 || (uint32_t)*id >= routed || (k && *id <= id[-1])) return 0;
        }
    return 1;
}

/* Looks into a complete step. 0: impossible. */
static int parse_step(struct duck *d, struct step_slot *s)
{
    const struct wire_open *o = &d->session.terms;
    const struct duck_shape *shape = &d->store.shape;
    uint64_t bytes = (uint64_t)(s->fragments - 1) * o->payload + s->last_bytes;
    struct wire_step w;
    if (bytes < sizeof w) return 0;
    memcpy(&w, s->data, sizeof w);
    if (w.bank >= shape->banks || w.tokens == 0 || w.tokens > o->max_tokens || w.top_k > o->max_top_k ||
        w.top_k > shape->bank[w.bank].routed || w.activation >= WIRE_DTYPES || w.result > WIRE_BF16)
        return 0;
    struct wire_step_layout l =
        wire_step_layout(shape->hidden, w.tokens, w.top_k, (enum wire_dtype)w.activation, o->payload);
    if (l.bytes == 0 || l.bytes != bytes || w.bytes != bytes) return 0;
    s->step = (struct duck_step){.bank = w.bank,
                                 .tokens = w.tokens,
                                 .top_k = w.top_k,
                                 .x = s->x,
                                 .ids = (const int32_t *)(const void *)(s->data + l.ids),
                                 .weights = (const float *)(const void *)(s->data + l.weights)};
    if (!ids_ascend(&s->step, shape->bank[w.bank].routed)) return 0;
    s->result = (enum wire_dtype)w.result;
    uint32_t subtrees = duck_core_subtrees(d->store.core, w.bank, NULL, 0);
    s->plan = wire_result_plan(shape->hidden, w.tokens, subtrees, s->result, o->payload);
    if (subtrees && s->plan.fragments == 0) return 0;
    s->activation = (enum wire_dtype)w.activation;
    s->packed = s->data + l.scales;
    memset(s->again, 0, s->plan.fragments / 8 + 1);
    return 1;
}

static void step_complete(struct duck *d, struct step_slot *s)
{
    s->nak_at = 0;
    s->complete_at = d->now;
    if (!duck__store_complete(d)) {
        duck__step_acknowledge(d, s->sequence, s, WIRE_STEP_NOT_READY);
        d->stats.unexpected++;
        s->state = STEP_EMPTY; // to be sent again later
        return;
    }
    if (!parse_step(d, s)) {
        s->status = WIRE_STEP_BAD;
        s->plan.fragments = 0;
        d->stats.unexpected++;
    }
    s->state = s->plan.fragments ? STEP_QUEUED : STEP_COMPUTED;
    s->done_sent = s->plan.fragments == 0; // nothing to send
    duck__step_acknowledge(d, s->sequence, s, s->status);
}

/* Numbers of a fragment against the slot and the room. */
static int fragment_fits(struct duck *d, const struct step_slot *s, const struct wire_header *h)
{
    uint32_t payload = d->session.terms.payload;
    if (s->fragments && s->fragments != h->fragments) return 0;
    if (h->length == 0 || h->length > payload || (h->fragment + 1 < h->fragments && h->length != payload))
        return 0;
    return (uint64_t)(h->fragments - 1) * payload < d->judge.room && // the bitmap is as long as the room
           (uint64_t)h->fragment * payload + h->length <= d->judge.room;
}

void duck__step_fragment(struct duck *d, const struct wire_header *h, const uint8_t *payload)
{
    struct judge *j = &d->judge;
    if (j->slots == 0) { // no plan yet
        duck__step_acknowledge(d, h->sequence, NULL, WIRE_STEP_NOT_READY);
        d->stats.unexpected++;
        return;
    }
    struct step_slot *s = slot_for(d, h);
    if (!s) return;
    if (s->state != STEP_RECEIVING && s->state != STEP_EXPECTED) { // has all of it
        d->stats.duplicate++;
        if (h->fragment + 1 == h->fragments) duck__step_acknowledge(d, s->sequence, s, s->status);
        return;
    }
    if (!fragment_fits(d, s, h)) {
        d->stats.bad_frame++;
        return;
    }
    if (s->fragments == 0) {
        s->state = STEP_RECEIVING;
        s->fragments = h->fragments;
        s->first_at = d->now;
        duck__renew_lease(d);
        memset(s->bitmap, 0, (h->fragments + 7u) / 8);
    }
    if (wire_bit(s->bitmap, h->fragment)) {
        d->stats.duplicate++;
        return;
    }
    wire_set_bit(s->bitmap, h->fragment);
    memcpy(s->data + (uint64_t)h->fragment * d->session.terms.payload, payload, h->length);
    if (h->fragment + 1 == h->fragments) s->last_bytes = h->length;
    if (h->fragment + 1u > s->highest) s->highest = h->fragment + 1u;
    if (++s->have == s->fragments) {
        step_complete(d, s);
    } else if (s->highest > s->have) {
        gap_seen(d, s);
    } else {
        silence(d, s);
    }
}

/* ---- asking ---- */

static void ask_for_missing(struct duck *d, const struct step_slot *s)
{
    uint8_t *p = duck__out(d, &d->session.holder);
    if (!p) return; // at the next turn
    struct wire_resend r = {0};
    if (s->fragments) {
        while (wire_bit(s->bitmap, r.first)) r.first++;
        uint32_t most = 8 * (d->session.terms.payload - (uint32_t)sizeof r), left = s->fragments - r.first;
        r.count = (uint16_t)(left < most ? left : most);
        memset(p + sizeof r, 0, (r.count + 7u) / 8);
        for (uint32_t i = 0; i < r.count; i++)
            if (!wire_bit(s->bitmap, r.first + i)) wire_set_bit(p + sizeof r, i);
    }
    memcpy(p, &r, sizeof r);
    struct wire_header h = {.type = WIRE_RESEND,
                            .length = (uint16_t)(sizeof r + (r.count + 7u) / 8),
                            .session = d->session.terms.session,
                            .sequence = s->sequence,
                            .source = d->session.terms.duck};
    duck__send(d, h, &d->session.key);
    d->stats.resend_asked++;
}

uint64_t duck__judge_timers(struct duck *d)
{
    uint64_t next = UINT64_MAX;
    for (uint32_t i = 0; i < d->judge.slots; i++) {
        struct step_slot *s = &d->judge.slot[i];
        if (s->nak_at == 0 || (s->state != STEP_RECEIVING && s->state != STEP_EXPECTED)) continue;
        if (s->nak_at <= d->now) {
            ask_for_missing(d, s);
            uint64_t wait = 4 * gap_ns(d) < NAK_MIN_NS ? NAK_MIN_NS : 4 * gap_ns(d);
            wait <<= s->naks < 6 ? s->naks : 6;
            s->naks++;
            s->nak_at = d->now + (wait < NAK_MAX_NS ? wait : NAK_MAX_NS);
        }
        if (s->nak_at < next) next = s->nak_at;
    }
    return next;
}

/* ---- computing ---- */

static struct step_slot *next_queued(struct judge *j)
{
    struct step_slot *next = NULL;
    for (uint32_t i = 0; i < j->slots; i++) {
        struct step_slot *s = &j->slot[i];
        if (s->state == STEP_QUEUED && (!next || (int32_t)(s->sequence - next->sequence) < 0)) next = s;
    }
    return next;
}

static void start_phase(struct duck *d)
{
    struct judge *j = &d->judge;
    struct step_slot *s = j->running;
    struct team_job job = {
        .work = s->work, .phase = j->phase, .by_program = d->session.terms.program_hash != 0};
    if (j->phase == DUCK_DOWN_ROWS) job.done = s->row_task_done;
    duck__start_job(d, &job, duck_work_tasks(s->work, j->phase));
    if (j->phase != DUCK_DOWN_ROWS) d->p->wake(d->p->self, &d->team->mail); // by then they are awake
}

static void computed(struct duck *d, struct step_slot *s)
{
    uint64_t experts, bytes;
    duck_work_reads(s->work, &experts, &bytes);
    s->computed_at = d->p->now(d->p->self);
    s->state = STEP_COMPUTED;
    d->stats.steps++;
    d->stats.expert_reads += experts;
    d->stats.expert_bytes += bytes;
    d->stats.compute_us += (s->computed_at - s->begun_at) / 1000;
}

static void unpack(void *arg, uint32_t token)
{
    struct duck *d = arg;
    struct step_slot *s = d->judge.running;
    uint32_t hidden = d->store.shape.hidden;
    wire_unpack_token(s->activation, s->packed, s->step.tokens, hidden, token, s->x + (size_t)token * hidden);
}

/* Unpacking is a job, so that many tokens do not keep core 0 from its NIC. */
static void start_step(struct duck *d, struct step_slot *s)
{
    s->begun_at = d->p->now(d->p->self);
    s->state = STEP_RUNNING;
    d->judge.running = s;
    duck__start_job(d, &(struct team_job){.fn = unpack, .arg = d}, s->step.tokens);
    d->p->wake(d->p->self, &d->team->mail);
}

/* Returns 0 if the step cannot be computed. */
static int begin_work(struct duck *d, struct step_slot *s)
{
    s->work = duck_work_begin(d->store.core, s->scratch, d->judge.scratch_bytes, &s->step);
    if (!s->work) { // sizes and ids were checked: cannot happen, but a step must not be lost in silence
        s->status = WIRE_STEP_BAD;
        s->plan.fragments = 0;
        s->state = STEP_COMPUTED;
        s->done_sent = 1;
        duck__step_acknowledge(d, s->sequence, s, s->status);
        return 0;
    }
    for (uint32_t i = 0; i < d->judge.max_row_tasks; i++)
        atomic_store_explicit(&s->row_task_done[i], 0, memory_order_relaxed);
    d->judge.phase = DUCK_PREPARE;
    start_phase(d);
    return 1;
}

int duck__judge_advance(struct duck *d)
{
    struct judge *j = &d->judge;
    if (!team_is_over(d->team)) return 0;
    if (d->store.packing.r) {
        duck__pack_over(d);
        return 1;
    }
    if (d->known.work) {
        duck__kat_advance(d);
        return 1;
    }
    if (j->running && !j->running->work) { // unpacked
        if (!begin_work(d, j->running)) j->running = NULL;
        return 1;
    }
    if (j->running && j->phase < DUCK_DOWN_ROWS) {
        j->phase++;
        start_phase(d);
        return 1;
    }
    if (j->running) computed(d, j->running);
    int did = j->running != NULL;
    j->running = NULL;
    if (d->session.terms.in_turn && duck__results_pending(d)) return did;
    struct step_slot *s = next_queued(j);
    if (!s) return duck__pack_next(d) || did;
    start_step(d, s);
    return 1;
}
