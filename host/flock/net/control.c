/* control.c: a net_flock's memory, its goals and its first failure. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "duck/kat.h"
#include "fp9/fp9_down.h"
#include "host/flock/net/internal.h"
#include "host/util/clock.h"

#define VALUES_BYTES ((uint64_t)512 << 20) // of all slots' results together, at most
#define STEPS_PER_LANE 2u                  // in flight, so that ducks always have the next one
#define REST_NS (2000 * NET_MS)            // for workers to let go of a session
#define FIRST_WINDOW 16.0
#define FIRST_RTT (5 * NET_MS)
#define FIRST_ACK (10 * NET_MS)
#define FIRST_ANSWER (50 * NET_MS)

void net_fail(struct net_flock *f, int rc, const char *format, ...)
{
    pthread_mutex_lock(&f->failure_mutex);
    if (!atomic_load(&f->failed)) { // the first one is the cause of the others
        va_list ap;
        va_start(ap, format);
        vsnprintf(f->failure.text, sizeof f->failure.text, format, ap);
        va_end(ap);
        f->failure_rc = rc;
        atomic_store(&f->failed, true);
    }
    pthread_mutex_unlock(&f->failure_mutex);
}

int net_failure(struct net_flock *f, struct error *err)
{
    if (!atomic_load(&f->failed)) return 0;
    pthread_mutex_lock(&f->failure_mutex);
    if (err) *err = f->failure;
    int rc = f->failure_rc;
    pthread_mutex_unlock(&f->failure_mutex);
    return rc;
}

void net_set_goal(struct net_flock *f, enum net_goal goal)
{
    atomic_store_explicit(&f->goal, (int)goal, memory_order_release);
    if (f->wake) f->wake(f->wake_self);
}

bool net_all_reached(const struct net_flock *f, enum net_duck_state state, const struct net_duck **missing)
{
    for (uint32_t i = 0; i < f->ducks; i++) {
        if (atomic_load(&f->duck[i].gone) || atomic_load(&f->duck[i].state) >= (int)state) continue;
        if (missing) *missing = &f->duck[i];
        return false;
    }
    return true;
}

/* ---- before anything is known of the ducks ---- */

static void start_values(struct net_duck *d)
{
    d->window = FIRST_WINDOW;
    d->grows_fast = true;
    d->in_flight = 0;
    d->rtt_ns = FIRST_RTT;
    d->ack_ns = FIRST_ACK;
    d->answer_ns = FIRST_ANSWER;
    d->queue_tail = &d->queue;
}

static int init_ports(struct net_flock *f)
{
    f->port = calloc(f->ports, sizeof *f->port);
    f->duck = calloc(f->ducks, sizeof *f->duck);
    if (!f->port || !f->duck) return -ENOMEM;
    for (uint32_t i = 0; i < f->ports; i++) {
        f->port[i].flock = f;
        f->port[i].index = i;
        f->port[i].duck = calloc(f->ducks, sizeof(struct net_duck *));
        if (!f->port[i].duck) return -ENOMEM;
    }
    for (uint32_t i = 0; i < f->ducks; i++) {
        struct net_duck *d = &f->duck[i];
        const struct net_match *m = &f->config->match[i];
        *d = (struct net_duck){.index = i, .port = &f->port[m->port], .match = m};
        start_values(d);
        if (m->address) d->peer = (struct net_peer){.address = m->address, .port = m->udp};
        // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the port is one of f->ports
        d->port->duck[d->port->ducks++] = d;
    }
    return 0;
}

int net_flock_init(struct net_flock *f, struct net_config *config, struct error *err)
{
    *f = (struct net_flock){.lost = -1,
                            .config = config,
                            .ports = config->ports,
                            .wires = config->wires,
                            .ducks = config->ducks,
                            .live = config->ducks,
                            .goal = NET_FIND,
                            .flock_key = config->key,
                            .payload = WIRE_PAYLOAD,
                            .failure_mutex = PTHREAD_MUTEX_INITIALIZER,
                            .load_mutex = PTHREAD_MUTEX_INITIALIZER,
                            .load_cond = PTHREAD_COND_INITIALIZER,
                            .wait_mutex = PTHREAD_MUTEX_INITIALIZER,
                            .wait_cond = PTHREAD_COND_INITIALIZER};
    f->known = &f->manifest;
    int rc = init_ports(f);
    if (rc) return error_set(err, rc, "no memory for %u ports and %u ducks", f->ports, f->ducks);
    net__places_read(f);
    return 0;
}

static void end_duck(const struct net_flock *f, struct net_duck *d)
{
    net__put_free(d);
    for (uint32_t k = 0; d->result && k < f->slots; k++) free(d->result[k].bitmap);
    free(d->result);
    free(d->run);
    free(d->run_unit);
    free(d->unit_hash);
    free(d->plan_bytes);
    free(d->subtrees);
    free(d->first_node);
    free(d->node_of);
    d->result = NULL;
    d->run = NULL;
    d->run_unit = d->unit_hash = NULL;
    d->plan_bytes = NULL;
    d->subtrees = d->first_node = d->node_of = NULL;
    d->shape = (struct duck_shape){0};
    d->loading = (struct duck_loading){0};
    d->opened = (struct wire_opened){0};
    d->units = d->busy_ns = d->timer_ns = 0;
    d->plan_asked = d->program_asked = d->computes_right = false;
    d->unit_asked = d->ping = 0;
    start_values(d);
}

/* Everything that belongs to one session; the ducks and what they are known by stays. */
static void end_session(struct net_flock *f)
{
    for (uint32_t i = 0; f->duck && i < f->ducks; i++) end_duck(f, &f->duck[i]);
    for (uint32_t i = 0; f->port && i < f->ports; i++) {
        free(f->port[i].node);
        f->port[i].node = NULL;
        f->port[i].sent = f->port[i].next_fragment = 0;
        f->port[i].discover_ns = f->port[i].find_ns = 0;
    }
    for (uint32_t i = 0; f->bank && i < f->banks; i++) free(f->bank[i].node);
    for (uint32_t i = 0; f->slot && i < f->slots; i++) {
        free(f->slot[i].packed);
        free(f->slot[i].values);
        free(f->slot[i].left);
    }
    free(f->bank);
    free(f->bank_run);
    free(f->duck_run);
    free(f->slot);
    free(f->lane);
    f->bank = NULL;
    f->bank_run = f->duck_run = NULL;
    f->slot = NULL;
    f->lane = NULL;
    f->slots = f->banks = f->max_nodes = f->session = f->last_step = 0;
    f->queued_bytes = f->last_done_ns = 0;
    f->units_sent = f->units_kept = 0;
    atomic_store(&f->published, 0);
}

void net_flock_free(struct net_flock *f)
{
    end_session(f);
    for (uint32_t i = 0; f->port && i < f->ports; i++) free(f->port[i].duck);
    free(f->port);
    free(f->duck);
    free(f->program);
    manifest_free(&f->manifest);
    *f = (struct net_flock){0};
}

/* ---- the end of a session ---- */

void net_close_session(struct net_flock *f, uint64_t ms)
{
    uint64_t until = clock_ns() + ms * NET_MS;
    net_set_goal(f, NET_CLOSE);
    while (!net_all_reached(f, NET_CLOSED, NULL) && clock_ns() <= until)
        nanosleep(&(struct timespec){.tv_nsec = NET_MS}, NULL);
}

/* ---- without a duck ---- */

int net_lost(const struct net_flock *f)
{
    return atomic_load(&f->lost);
}

static bool all_rest(const struct net_flock *f)
{
    for (uint32_t i = 0; i < f->ports; i++)
        if (atomic_load(&f->port[i].seen_goal) != NET_REST) return false;
    return true;
}

static int rest(struct net_flock *f, struct error *err)
{
    uint64_t until = clock_ns() + REST_NS;
    net_set_goal(f, NET_REST);
    while (!all_rest(f)) {
        if (clock_ns() > until) return error_set(err, -ETIMEDOUT, "a port's worker does not come to rest");
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return 0;
}

/* At rest: the session is forgotten, the ducks have to be found again. */
static void begin_again(struct net_flock *f)
{
    end_session(f);
    f->live = 0;
    for (uint32_t i = 0; i < f->ducks; i++) f->live += !atomic_load(&f->duck[i].gone);
    for (uint32_t i = 0; i < f->ducks; i++)
        if (!atomic_load(&f->duck[i].gone)) atomic_store(&f->duck[i].state, NET_UNKNOWN);
    atomic_store(&f->lost, -1);
    atomic_store(&f->failed, false);
}

int net_flock_drop(struct net_flock *f, uint32_t duck, struct error *err)
{
    int rc = rest(f, err);
    if (rc) return rc;
    atomic_store(&f->duck[duck].gone, true);
    begin_again(f);
    return 0;
}

int net_flock_take_back(struct net_flock *f, uint32_t duck, struct error *err)
{
    int rc = rest(f, err);
    if (rc) return rc;
    struct net_duck *d = &f->duck[duck];
    d->hello = (struct wire_hello){0}; // it may have another address, another firmware
    d->peer = (struct net_peer){.address = d->match->address, .port = d->match->address ? d->match->udp : 0};
    atomic_store(&d->gone, false);
    begin_again(f);
    return 0;
}

/* ---- guests ---- */

struct net_match net_duck_again(const struct net_duck *d)
{
    static const uint8_t none[6];
    struct net_match m = {.port = d->match->port, .udp = d->match->udp};
    if (!d->hello.boot_id) return *d->match; // it has never been here
    memcpy(m.mac, d->hello.mac, sizeof m.mac);
    m.has_mac = memcmp(m.mac, none, sizeof none) != 0;
    if (m.has_mac && !d->match->address) return m; // its address may be another now
    m.address = d->peer.address;
    m.udp = d->peer.port;
    return m;
}

void net_guest_attach(struct net_flock *guest, struct net_flock *host, uint32_t duck)
{
    uint32_t index = host->duck[duck].port->index;
    guest->is_guest = true;
    guest->known = &host->manifest;
    guest->wake = host->wake;
    guest->wake_self = host->wake_self;
    guest->port[index].io = host->port[index].io;
    guest->port[index].host = &host->port[index];
    guest->duck[0].place = duck;
    atomic_store(&guest->duck[0].last, atomic_load(&host->duck[duck].last));
    atomic_store(&host->port[index].guest, &guest->port[index]);
}

int net_guest_detach(struct net_flock *guest, struct net_flock *host, uint32_t index, struct error *err)
{
    struct net_port *p = &host->port[index];
    uint64_t until = clock_ns() + REST_NS;
    net_set_goal(guest, NET_REST);
    atomic_store(&p->guest, NULL);
    // A round that was under way may still use it, the one after that does not.
    for (uint64_t seen = atomic_load(&p->rounds); atomic_load(&p->rounds) < seen + 2;) {
        if (clock_ns() > until) return error_set(err, -ETIMEDOUT, "a port's worker does not come to rest");
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return 0;
}

/* ---- the session's memory ---- */

/* A duck's part of the plan, its units and the object that tells it. */
static int prepare_shape(struct net_flock *f, struct net_duck *d)
{
    const struct plan *p = f->plan;
    d->run = calloc(p->runs + 1, sizeof *d->run);
    d->run_unit = calloc(p->runs + 1, sizeof *d->run_unit);
    if (!d->run || !d->run_unit) return -ENOMEM;
    d->shape = plan_shape(p, d->index, d->run);
    for (uint32_t i = 0; i < d->shape.runs; i++) {
        const struct duck_bank_shape *b = &p->bank[d->run[i].bank];
        d->run_unit[i] = d->units;
        d->units += 3 * ((uint64_t)b->routed + b->always);
    }
    for (uint32_t i = 0, own = 0; i < p->runs; i++)
        if (p->run[i].duck == d->index) f->duck_run[i] = own++;
    d->plan_length = (uint32_t)wire_plan_bytes(&d->shape);
    d->plan_bytes = malloc(d->plan_length);
    d->unit_hash = calloc(d->units + 1, sizeof *d->unit_hash);
    if (!d->plan_bytes || !d->unit_hash) return -ENOMEM;
    wire_plan_write(&d->shape, d->plan_bytes);
    d->plan_hash = wire_object_hash(d->plan_bytes, d->plan_length);
    return 0;
}

static int by_first(const void *a, const void *b)
{
    const struct net_node *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* The complete subtrees of a bank as all ducks together send them; a duck numbers its own in the order of its
 * runs. */
static int prepare_bank(struct net_flock *f, uint32_t bank)
{
    struct net_bank *b = &f->bank[bank];
    b->slices = f->plan->bank[bank].width / FP9_LANES;
    b->node = calloc(b->slices, sizeof *b->node);
    if (!b->node) return -ENOMEM;
    for (uint32_t i = f->bank_run[bank]; i < f->bank_run[bank + 1]; i++) {
        const struct plan_run *r = &f->plan->run[i];
        for (uint32_t s = 0; s < r->count;) {
            uint32_t level = fp9_subtree_level(r->first + s, r->count - s);
            b->node[b->nodes++] =
                (struct net_node){r->duck, f->duck[r->duck].subtrees[bank]++, r->first + s, level};
            s += 1u << level;
        }
    }
    qsort(b->node, b->nodes, sizeof *b->node, by_first);
    if (b->nodes > f->max_nodes) f->max_nodes = b->nodes;
    return 0;
}

static int prepare_nodes(struct net_flock *f, struct net_duck *d)
{
    uint32_t total = 0;
    for (uint32_t b = 0; b < f->banks; b++) {
        d->first_node[b] = total;
        total += d->subtrees[b];
    }
    d->node_of = calloc(total + 1, sizeof *d->node_of);
    if (!d->node_of) return -ENOMEM;
    for (uint32_t b = 0; b < f->banks; b++)
        for (uint32_t i = 0; i < f->bank[b].nodes; i++)
            if (f->bank[b].node[i].duck == d->index)
                d->node_of[d->first_node[b] + f->bank[b].node[i].subtree] = i;
    return 0;
}

static int prepare_plan(struct net_flock *f)
{
    const struct plan *p = f->plan;
    f->bank = calloc(f->banks, sizeof *f->bank);
    f->bank_run = calloc(f->banks + 1, sizeof *f->bank_run);
    f->duck_run = calloc(p->runs + 1, sizeof *f->duck_run);
    if (!f->bank || !f->bank_run || !f->duck_run) return -ENOMEM;
    for (uint32_t i = 0; i < p->runs; i++) f->bank_run[p->run[i].bank + 1]++;
    for (uint32_t b = 0; b < f->banks; b++) f->bank_run[b + 1] += f->bank_run[b];
    int rc = 0;
    for (uint32_t i = 0; i < f->ducks && !rc; i++) {
        struct net_duck *d = &f->duck[i];
        d->subtrees = calloc(f->banks, sizeof *d->subtrees);
        d->first_node = calloc(f->banks, sizeof *d->first_node);
        rc = d->subtrees && d->first_node ? prepare_shape(f, d) : -ENOMEM;
    }
    for (uint32_t b = 0; b < f->banks && !rc; b++) rc = prepare_bank(f, b);
    for (uint32_t i = 0; i < f->ducks && !rc; i++) rc = prepare_nodes(f, &f->duck[i]);
    return rc;
}

/* Whether steps of so many tokens fit the protocol's fragment numbers and the memory for results. */
static bool block_fits(const struct net_flock *f, uint32_t tokens)
{
    if (wire_step_layout(f->hidden, tokens, f->max_top_k, f->activation, f->payload).bytes == 0) return false;
    for (uint32_t i = 0; i < f->ducks; i++) {
        for (uint32_t b = 0; b < f->banks; b++) {
            uint32_t n = f->duck[i].subtrees[b];
            if (n && wire_result_plan(f->hidden, tokens, n, f->result, f->payload).fragments == 0)
                return false;
        }
    }
    return (uint64_t)f->slots * f->max_nodes * tokens * f->hidden * sizeof(float) <= VALUES_BYTES;
}

static int prepare_slots(struct net_flock *f)
{
    uint32_t tokens = f->block_tokens;
    uint64_t bytes = wire_step_layout(f->hidden, tokens, f->max_top_k, f->activation, f->payload).bytes;
    struct wire_result_plan most = wire_result_plan(f->hidden, tokens, 1, f->result, f->payload);
    f->slot = calloc(f->slots, sizeof *f->slot);
    if (!f->slot) return -ENOMEM;
    for (uint32_t i = 0; i < f->slots; i++) {
        struct net_slot *s = &f->slot[i];
        s->packed = malloc(bytes);
        s->values = malloc((size_t)f->max_nodes * tokens * f->hidden * sizeof *s->values);
        // Smaller steps may hold several tokens in a fragment, never more blocks.
        s->left = calloc((size_t)most.blocks * tokens, sizeof *s->left);
        if (!s->packed || !s->values || !s->left) return -ENOMEM;
    }
    for (uint32_t i = 0; i < f->ducks; i++) {
        struct net_duck *d = &f->duck[i];
        uint32_t subtrees = 0;
        for (uint32_t b = 0; b < f->banks; b++)
            if (d->subtrees[b] > subtrees) subtrees = d->subtrees[b];
        d->result = calloc(f->slots, sizeof *d->result);
        if (!d->result) return -ENOMEM;
        for (uint32_t k = 0; k < f->slots; k++) {
            d->result[k].bitmap = calloc((size_t)most.blocks * tokens * (subtrees + 1) / 8 + 1, 1);
            if (!d->result[k].bitmap) return -ENOMEM;
        }
    }
    return 0;
}

static int prepare_ports(struct net_flock *f)
{
    for (uint32_t i = 0; i < f->ports; i++) {
        f->port[i].node = calloc(f->max_nodes, sizeof *f->port[i].node);
        if (!f->port[i].node) return -ENOMEM;
    }
    f->lane = calloc(f->lanes, sizeof *f->lane);
    return f->lane ? 0 : -ENOMEM;
}

/* The known answer of this session. */
static int prepare_kat(struct net_flock *f)
{
    void *memory = aligned_alloc(64, KAT_MEMORY);
    if (!memory) return -ENOMEM;
    memcpy(&f->kat.seed, f->nonce + sizeof f->session, sizeof f->kat.seed);
    f->kat.format = f->plan->format;
    f->kat.hash = kat_hash(&fp9_scalar, f->plan->format, memory, f->kat.seed);
    free(memory);
    return 0;
}

/* Ducks with firmware of before there was the choice keep fp9 alone. */
static int check_format(const struct net_flock *f, struct error *err)
{
    if (f->plan->format == FP9_FP9) return 0;
    for (uint32_t i = 0; i < f->ducks; i++) {
        const struct net_duck *d = &f->duck[i];
        if (d->gone || d->units == 0 || d->hello.features & WIRE_E4M3) continue;
        return error_set(err, -EPROTO,
                         "%s has firmware %s, which keeps experts as fp9 only: it needs a newer one for "
                         "--expert-format e4m3",
                         net_duck_name(d).s, d->hello.firmware);
    }
    return 0;
}

int net_flock_prepare(struct net_flock *f, const struct net_session *s, const uint8_t nonce[WIRE_NONCE],
                      struct error *err)
{
    f->plan = s->plan;
    f->hidden = s->plan->hidden;
    f->banks = s->plan->banks;
    f->lanes = s->lanes;
    f->max_top_k = s->max_top_k;
    f->element_bytes = s->element_bytes;
    f->activation = s->activation;
    f->result = s->result;
    f->in_turn = s->in_turn;
    memcpy(f->nonce, nonce, WIRE_NONCE);
    f->key = wire_session_key(&f->flock_key, nonce);
    memcpy(&f->session, nonce, sizeof f->session); // as random as the nonce
    if (f->session == 0) f->session = 1;
    f->payload = f->config->payload;
    for (uint32_t i = 0; i < f->ducks; i++)
        if (!f->duck[i].gone && f->duck[i].hello.payload < f->payload) f->payload = f->duck[i].hello.payload;
    f->payload = f->payload / 32 * 32;
    if (f->payload < 512) return error_set(err, -EPROTO, "a duck takes only %u bytes a fragment", f->payload);
    for (f->slots = 1; f->slots < STEPS_PER_LANE * f->lanes;) f->slots *= 2;
    int rc = prepare_kat(f);
    if (!rc) rc = prepare_plan(f);
    if (rc) return error_set(err, rc, "no memory for the plan of %u ducks", f->ducks);
    rc = check_format(f, err);
    if (rc) return rc;
    f->block_tokens = s->max_tokens < f->config->step_tokens ? s->max_tokens : f->config->step_tokens;
    while (f->block_tokens > 1 && !block_fits(f, f->block_tokens)) f->block_tokens /= 2;
    if (!block_fits(f, f->block_tokens))
        return error_set(err, -E2BIG, "a step of one token of %u values does not fit %u ducks' frames",
                         f->hidden, f->ducks);
    rc = prepare_slots(f);
    if (!rc) rc = prepare_ports(f);
    return rc ? error_set(err, rc, "no memory for %u steps in flight", f->slots) : 0;
}
