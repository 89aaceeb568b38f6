/* transport.c: ducks on a network behind the transport seam: find them, open the session, send weights, then
 * steps. What moves the frames are workers. */
#include "host/flock/transport.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "host/flock/net/inside.h"
#include "host/flock/net/workers.h"
#include "host/util/clock.h"
#include "host/util/log.h"

#define MS 1000000ull
#define OPEN_MS 60000u // for program, plan and hashes of all ducks
#define CLOSE_MS 1000u
#define SETTLE_MS 500u
#define GUEST_MS 1500u // for a duck that may be there again to answer
#define GUEST_OPEN_MS 10000u
#define STEP_MS 60000u // a step that takes longer has failed, though its ducks still answer pings
#define PROGRAM_MOST (1 << 20)
#define STEPS_MEMORY ((uint64_t)384 << 20) // of a duck, at most; beside its weights

struct net_transport {
    struct transport base;
    const struct net_workers *workers;
    void *running;         // the workers
    struct inside *inside; // the duck in this process; NULL: none
    struct net_flock f;
    struct net_session session; // but for the plan
    uint64_t *submitted_ns;     // (lanes)
    // of a guest
    struct net_transport *host; // NULL: it is none
    struct net_config config;
    struct net_match match;
};

static void sleep_us(long us)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000 * us}, NULL);
}

/* Until all ducks are in `state`; false: failed or too late. */
static bool reach(struct net_flock *f, enum net_duck_state state, uint64_t ms,
                  const struct net_duck **missing)
{
    uint64_t until = clock_ns() + ms * MS;
    while (!net_all_reached(f, state, missing)) {
        if (atomic_load(&f->failed) || clock_ns() > until) return false;
        sleep_us(1000);
    }
    return true;
}

static void net_close(struct transport *t)
{
    struct net_transport *n = (struct net_transport *)t;
    if (atomic_load(&n->f.goal) == NET_RUN && !n->host) net_say_figures(&n->f);
    if (n->running || n->host) net_close_session(&n->f, CLOSE_MS);
    inside_stop(n->inside);
    if (n->running) n->workers->stop(n->running);
    struct error why;
    if (n->host && net_guest_detach(&n->f, &n->host->f, n->match.port, &why)) {
        log_notice("%s", why.text);
        return; // the worker may still look at it
    }
    net_flock_free(&n->f);
    free(n->submitted_ns);
    free(n);
}

/* ---- finding ---- */

static int not_found(struct net_flock *f, const struct net_duck *missing, struct error *err)
{
    int rc = net_failure(f, err);
    if (rc) return rc;
    uint32_t count = 0;
    for (uint32_t i = 0; i < f->ducks; i++) count += atomic_load(&f->duck[i].state) == NET_UNKNOWN;
    return error_set(err, -ENODEV, "%u of %u ducks %s not answered within %.1f s, the first is %s", count,
                     f->ducks, count == 1 ? "has" : "have", f->config->find_ms / 1e3,
                     net_duck_name(missing).s);
}

/* Those who have not answered are lost from the start, if they may be. */
static int begin_without(struct net_flock *f, const struct flock_spec *spec, const struct net_duck *missing,
                         struct error *err)
{
    struct error why;
    int rc = not_found(f, missing, &why);
    uint32_t count = 0;
    for (uint32_t i = 0; i < f->ducks; i++) {
        spec->duck[i].absent = atomic_load(&f->duck[i].state) == NET_UNKNOWN;
        count += spec->duck[i].absent;
    }
    if (net_failure(f, NULL) || count > f->config->may_miss || count == f->ducks) {
        *err = why;
        return rc;
    }
    for (uint32_t i = 0; i < f->ducks; i++) atomic_store(&f->duck[i].gone, spec->duck[i].absent);
    f->live -= count;
    if (count) log_notice("%s: the flock begins without and takes in whoever comes", why.text);
    return 0;
}

/* A duck's own memory is a limit as well, less what steps and weights on their way need. An absent one is
 * taken for one like the smallest that is there. */
static void bound_memory(const struct net_flock *f, const struct flock_spec *spec)
{
    uint64_t smallest = UINT64_MAX;
    for (uint32_t i = 0; i < f->ducks; i++) {
        uint64_t unused = f->duck[i].hello.memory_free, *limit = &spec->duck[i].plan.memory_bytes;
        unused -= unused / 8 < STEPS_MEMORY ? unused / 8 : STEPS_MEMORY;
        if (unused && !spec->duck[i].absent && unused < *limit) *limit = unused;
        if (!spec->duck[i].absent && *limit < smallest) smallest = *limit;
    }
    for (uint32_t i = 0; i < f->ducks; i++)
        if (spec->duck[i].absent && smallest < spec->duck[i].plan.memory_bytes)
            spec->duck[i].plan.memory_bytes = smallest;
}

static int find(struct transport **out, struct flock_spec *spec, const struct transport_ops *ops,
                const struct net_workers *workers, struct error *err)
{
    struct net_transport *n = calloc(1, sizeof *n);
    if (!n) return error_set(err, -ENOMEM, "no memory for a flock");
    n->base.ops = ops;
    n->workers = workers;
    int rc = net_flock_init(&n->f, spec->net, err);
    if (!rc && n->f.flock_key.k0 == 0 && n->f.flock_key.k1 == 0)
        log_notice("the flock's key is all zero: whoever is on its network can command its ducks (key_file)");
    if (!rc) rc = workers->start(&n->running, &n->f, err);
    if (!rc && spec->net->inside.memory_bytes) rc = inside_start(&n->inside, &n->f, err);
    const struct net_duck *missing;
    if (!rc && !reach(&n->f, NET_FOUND, spec->net->find_ms, &missing))
        rc = begin_without(&n->f, spec, missing, err);
    if (rc) {
        net_close(&n->base);
        return rc;
    }
    bound_memory(&n->f, spec);
    net_weigh_ducks(&n->f, spec->duck);
    *out = &n->base;
    return 0;
}

static int find_udp(struct transport **out, struct flock_spec *spec, struct error *err)
{
    return find(out, spec, &transport_udp, &net_workers_udp, err);
}

static int find_dpdk(struct transport **out, struct flock_spec *spec, struct error *err)
{
    return find(out, spec, &transport_dpdk, &net_workers_dpdk, err);
}

/* ---- opening ---- */

static int read_program(struct net_flock *f, struct error *err)
{
    const char *path = f->config->program;
    if (!*path) return 0;
    FILE *file = fopen(path, "rbe");
    if (!file) return error_set(err, -errno, "program %s: %s", path, strerror(errno));
    f->program = malloc(PROGRAM_MOST + 1);
    size_t n = f->program ? fread(f->program, 1, PROGRAM_MOST + 1, file) : 0;
    fclose(file);
    if (!f->program || n == 0 || n > PROGRAM_MOST)
        return error_set(err, -EINVAL, "program %s must have 1 .. %d bytes", path, PROGRAM_MOST);
    f->program_length = (uint32_t)n;
    f->program_hash = wire_object_hash(f->program, n);
    return 0;
}

/* Both ends say that they take them; a switch is not asked. */
static const char *long_frames(const struct net_flock *f)
{
    return f->payload > WIRE_PAYLOAD ? " (does everything between take frames longer than 1500 bytes?)" : "";
}

static int not_open(struct net_flock *f, const struct net_duck *missing, uint64_t ms, struct error *err)
{
    int rc = net_failure(f, err);
    if (rc) return rc;
    return error_set(err, -ETIMEDOUT, "%s has not opened the session within %.0f s%s",
                     net_duck_name(missing).s, (double)ms / 1e3, long_frames(f));
}

/* A session with all ducks that have been found, for a plan. */
static int open_session(struct net_transport *n, const struct plan *plan, struct error *err)
{
    struct net_flock *f = &n->f;
    struct net_session s = n->session;
    s.plan = plan;
    uint8_t nonce[WIRE_NONCE];
    if (getrandom(nonce, sizeof nonce, 0) != sizeof nonce)
        return error_set(err, -errno, "no random numbers for a session: %s", strerror(errno));
    int rc = net_flock_prepare(f, &s, nonce, err);
    if (rc) return rc;
    net_set_goal(f, NET_OPEN);
    const struct net_duck *missing;
    uint64_t ms = (n->host ? GUEST_OPEN_MS : OPEN_MS) + 2 * (uint64_t)f->config->lease_ms;
    if (!reach(f, NET_READY, ms, &missing)) return not_open(f, missing, ms, err);
    net_set_goal(f, NET_RUN);
    f->sessions++;
    log_detail("flock: %u duck%s on %u port%s, session %08x, %u bytes a fragment, steps of up to %u tokens",
               f->live, f->live == 1 ? "" : "s", f->ports, f->ports == 1 ? "" : "s", f->session, f->payload,
               f->block_tokens);
    return 0;
}

static int net_open(struct transport **out, const struct transport_options *o, struct error *err)
{
    struct net_transport *n = (struct net_transport *)*out;
    n->session = (struct net_session){.lanes = o->lanes,
                                      .max_tokens = o->max_tokens,
                                      .max_top_k = o->max_top_k,
                                      .element_bytes = o->element_bytes,
                                      .activation = o->activation,
                                      .result = o->result};
    n->submitted_ns = calloc(o->lanes, sizeof *n->submitted_ns);
    if (!n->submitted_ns) return error_set(err, -ENOMEM, "no memory for %u lanes", o->lanes);
    int rc = read_program(&n->f, err);
    if (rc) return rc;
    if (!n->host) manifest_read(&n->f.manifest, n->f.config->manifest);
    return open_session(n, o->plan, err);
}

/* ---- a duck that comes back ---- */

static int net_guest(struct transport **out, struct transport *host, uint32_t duck, struct error *err)
{
    struct net_transport *h = (struct net_transport *)host, *n = calloc(1, sizeof *n);
    if (!n) return error_set(err, -ENOMEM, "no memory for a returning duck");
    n->base.ops = host->ops;
    n->match = net_duck_again(&h->f.duck[duck]);
    n->config = *h->f.config;
    n->config.ducks = 1;
    n->config.match = &n->match;
    *n->config.places = 0; // the host's affair
    int rc = net_flock_init(&n->f, &n->config, err);
    if (!rc) {
        net_guest_attach(&n->f, &h->f, duck);
        n->host = h;
        const struct net_duck *missing;
        if (!reach(&n->f, NET_FOUND, GUEST_MS, &missing))
            rc = error_set(err, -ENODEV, "%s does not answer", net_duck_name(missing).s);
    }
    if (rc) {
        net_close(&n->base);
        return rc;
    }
    *out = &n->base;
    return 0;
}

/* ---- without a lost duck ---- */

static int net_transport_lost(struct transport *t, struct error *why)
{
    struct net_flock *f = &((struct net_transport *)t)->f;
    int lost = net_lost(f);
    if (lost >= 0) net_failure(f, why);
    return lost;
}

static int net_transport_drop(struct transport *t, uint32_t lost, struct error *err)
{
    struct net_flock *f = &((struct net_transport *)t)->f;
    atomic_store(&f->duck[lost].gone, true); // it is not waited for
    net_close_session(f, CLOSE_MS);
    return net_flock_drop(f, lost, err);
}

static int net_transport_take_back(struct transport *t, uint32_t duck, struct error *err)
{
    struct net_flock *f = &((struct net_transport *)t)->f;
    net_close_session(f, CLOSE_MS);
    return net_flock_take_back(f, duck, err);
}

static int net_transport_resume(struct transport *t, const struct plan *plan, struct error *err)
{
    struct net_transport *n = (struct net_transport *)t;
    net_set_goal(&n->f, NET_FIND);
    const struct net_duck *missing;
    if (!reach(&n->f, NET_FOUND, n->f.config->find_ms, &missing)) {
        if (!net_failure(&n->f, NULL)) atomic_store(&n->f.lost, (int)missing->index); // it was there before
        return not_found(&n->f, missing, err);
    }
    return open_session(n, plan, err);
}

/* ---- weights ---- */

/* *tensor belongs to what is returned. */
static struct net_unit_source source_of(const struct net_flock *f, const struct transport_matrix *m,
                                        struct duck_tensor *tensor)
{
    const struct weight *w = m->weight;
    *tensor = transport_tensor(m, f->hidden);
    return (struct net_unit_source){.key = m->source,
                                    .bank = m->bank,
                                    .expert = m->expert,
                                    .column = m->column,
                                    .tensor = tensor,
                                    .file = w->file,
                                    .name = w->name};
}

static void net_transport_expect(struct transport *t, const struct transport_matrix *m)
{
    struct net_flock *f = &((struct net_transport *)t)->f;
    struct duck_tensor tensor;
    const struct net_unit_source s = source_of(f, m, &tensor);
    net_expect(f, &s);
}

static void net_transport_loading(struct transport *t, uint32_t duck, struct duck_loading *out)
{
    net_loading(&((struct net_transport *)t)->f, duck, out);
}

static int net_transport_load(struct transport *t, const struct transport_matrix *m, struct error *err)
{
    struct net_flock *f = &((struct net_transport *)t)->f;
    struct duck_tensor tensor;
    const struct net_unit_source s = source_of(f, m, &tensor);
    uint64_t where = 0;
    struct error inner = {0};
    int rc = net_load(f, &s, &where, &inner);
    if (rc == DUCK_BAD_WEIGHT && !*inner.text)
        return transport_bad_weight(m, f->plan->format, rc, where, err);
    if (rc && err) *err = inner;
    return rc;
}

static int net_loaded(struct transport *t, struct error *err)
{
    struct net_transport *n = (struct net_transport *)t;
    struct net_flock *f = &n->f;
    int rc = net_load_finish(f, err);
    net_keep_manifest(f);
    if (rc) return rc;
    net_keep_places(f, n->host ? &n->host->f : NULL);
    log_detail("weights: %llu units sent, %llu were held already", (unsigned long long)f->units_sent,
               (unsigned long long)f->units_kept);
    return 0;
}

/* ---- steps ---- */

static int net_transport_submit(struct transport *t, uint32_t lane, const struct mlp_step *step,
                                struct error *err)
{
    struct net_transport *n = (struct net_transport *)t;
    n->submitted_ns[lane] = clock_ns();
    return net_submit(&n->f, lane, step, n->submitted_ns[lane], err);
}

static int net_transport_poll(struct transport *t, uint32_t lane, bool wait, struct error *err)
{
    struct net_transport *n = (struct net_transport *)t;
    for (;;) {
        uint64_t now = clock_ns();
        int rc = net_poll(&n->f, lane, now, err);
        if (rc != 0 || !wait) return rc;
        if (now - n->submitted_ns[lane] > STEP_MS * MS)
            return error_set(err, -ETIMEDOUT, "lane %u: the flock has not finished a step within %u s%s",
                             lane, STEP_MS / 1000, long_frames(&n->f));
        net_wait(&n->f);
    }
}

static void net_settle(const struct transport *t)
{
    const struct net_flock *f = &((const struct net_transport *)t)->f;
    uint64_t until = clock_ns() + SETTLE_MS * MS;
    while (!net_settled(f) && !atomic_load(&f->failed) && clock_ns() < until) sleep_us(20);
}

static void net_stats(const struct transport *t, uint32_t duck, struct duck_stats *out)
{
    net_duck_figures(&((const struct net_transport *)t)->f.duck[duck], out);
}

static void net_times_of(const struct transport *t, struct flock_times *out)
{
    net_flock_figures(&((const struct net_transport *)t)->f, out);
}

/* They differ in what carries the frames, which find() decides. */
#define NETWORK(carrier)                                                                                     \
    {                                                                                                        \
        .name = #carrier, .network = true, .find = find_##carrier, .open = net_open, .close = net_close,     \
        .expect = net_transport_expect, .loading = net_transport_loading, .load = net_transport_load,        \
        .loaded = net_loaded, .lost = net_transport_lost, .drop = net_transport_drop, .guest = net_guest,    \
        .take_back = net_transport_take_back, .resume = net_transport_resume,                                \
        .submit = net_transport_submit, .poll = net_transport_poll, .settle = net_settle,                    \
        .stats = net_stats, .times = net_times_of,                                                           \
    }
const struct transport_ops transport_udp = NETWORK(udp), transport_dpdk = NETWORK(dpdk);
