/* load.c: weight units: which are needed, cutting them, waiting until all are held. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "host/flock/net/internal.h"
#include "host/util/clock.h"
#include "host/util/log.h"

#define QUEUED_MOST ((uint64_t)128 << 20) // bytes cut and not yet held
#define KEEP_NS (3000 * NET_MS)   // between two times that the manifest is written: 23 MB for all of V3.2
#define LOOK_NS (1000 * NET_MS)   // longest time between two looks at whether something has failed
#define STALL_NS (30000 * NET_MS) // without any unit becoming held: something is wrong

static uint64_t key_of(const struct net_unit_source *s, const struct plan_run *r)
{
    const struct {
        uint64_t key;
        uint32_t column, which, element_bytes, first, count, version;
    } part = {s->key, s->column, (uint32_t)s->tensor->which, s->tensor->element_bytes, r->first, r->count, 1};
    return s->key ? wire_object_hash((const uint8_t *)&part, sizeof part) : 0; // 0: cannot be told apart
}

/* What a run of the plan has of a matrix. */
struct part {
    struct net_duck *duck;
    const struct plan_run *run;
    uint64_t unit, key, bytes;
};

static struct part part_of(const struct net_flock *f, const struct net_unit_source *s, uint32_t run)
{
    const struct plan_run *r = &f->plan->run[run];
    struct net_duck *d = &f->duck[r->duck];
    return (struct part){
        .duck = d,
        .run = r,
        .unit = d->run_unit[f->duck_run[run]] + 3 * (uint64_t)s->expert + s->tensor->which,
        .key = key_of(s, r),
        .bytes = wire_unit_layout(f->hidden, s->tensor->which, r->count, s->column + 8 * r->first,
                                  s->tensor->element_bytes)
                     .bytes,
    };
}

static bool is_held(struct net_flock *f, const struct part *p)
{
    pthread_mutex_lock(&f->load_mutex);
    uint64_t hash = p->duck->unit_hash[p->unit];
    bool held = hash != 0 && hash == manifest_get(f->known, p->key);
    pthread_mutex_unlock(&f->load_mutex);
    return held && p->key != 0;
}

static void make_folder(const char *path)
{
    char part[512];
    for (size_t i = 1; path[i] && i < sizeof part; i++) {
        if (path[i] != '/') continue;
        memcpy(part, path, i);
        part[i] = 0;
        mkdir(part, 0700); // what cannot be made shows when the file is written
    }
}

void net_keep_manifest(struct net_flock *f)
{
    struct error why;
    atomic_store(&f->kept_ns, clock_ns());
    if (!f->known->changed || !*f->config->manifest) return;
    make_folder(f->config->manifest);
    if (manifest_write(f->known, f->config->manifest, &why))
        log_notice("%s: weights will be sent again next time", why.text);
}

/* So that a daemon killed in the middle of 700 GB does not begin anew. */
static void keep_now_and_then(struct net_flock *f)
{
    uint64_t last = atomic_load(&f->kept_ns), now = clock_ns();
    if (now - last > KEEP_NS && atomic_compare_exchange_strong(&f->kept_ns, &last, now)) net_keep_manifest(f);
}

static int no_progress(const struct net_flock *f, struct error *err)
{
    const struct net_duck *d = f->duck;
    for (uint32_t i = 1; i < f->ducks; i++)
        if (f->duck[i].loading.under_way > d->loading.under_way) d = &f->duck[i];
    return error_set(err, -ETIMEDOUT, "%s has taken no weights for %llu s, %llu bytes are waiting for it",
                     net_duck_name(d).s, STALL_NS / (1000 * NET_MS),
                     (unsigned long long)d->loading.under_way);
}

/* Until fewer than `most` bytes are queued. */
static int wait_queue(struct net_flock *f, uint64_t most, struct error *err)
{
    int rc = 0;
    pthread_mutex_lock(&f->load_mutex);
    uint64_t seen = f->queued_bytes, since = clock_ns();
    while (f->queued_bytes > most && (rc = net_failure(f, err)) == 0) {
        clock_wait(&f->load_cond, &f->load_mutex, clock_ns() + LOOK_NS);
        pthread_mutex_unlock(&f->load_mutex);
        keep_now_and_then(f);
        pthread_mutex_lock(&f->load_mutex);
        if (f->queued_bytes != seen) {
            seen = f->queued_bytes;
            since = clock_ns();
        } else if (clock_ns() - since > STALL_NS) {
            rc = no_progress(f, err);
            break;
        }
    }
    pthread_mutex_unlock(&f->load_mutex);
    return rc;
}

void net_expect(struct net_flock *f, const struct net_unit_source *s)
{
    for (uint32_t i = f->bank_run[s->bank]; i < f->bank_run[s->bank + 1]; i++) {
        struct part p = part_of(f, s, i);
        if (is_held(f, &p)) continue;
        pthread_mutex_lock(&f->load_mutex);
        p.duck->loading.total += p.bytes;
        pthread_mutex_unlock(&f->load_mutex);
    }
}

void net_loading(struct net_flock *f, uint32_t duck, struct duck_loading *out)
{
    const struct net_duck *d = &f->duck[duck];
    pthread_mutex_lock(&f->load_mutex);
    *out = d->loading;
    if (out->under_way) out->ns += clock_ns() - d->loading_ns;
    pthread_mutex_unlock(&f->load_mutex);
}

static int send_unit(struct net_flock *f, const struct part *p, const struct net_unit_source *s,
                     uint64_t *where, struct error *err)
{
    uint64_t bytes = p->bytes;
    uint8_t *out = malloc(bytes);
    if (!out)
        return error_set(err, -ENOMEM, "no memory for a weight unit of %llu bytes",
                         (unsigned long long)bytes);
    int rc = wire_unit_cut(s->tensor, s->column, p->run->first, p->run->count, out, where);
    if (rc) {
        free(out);
        return rc;
    }
    const struct net_put put = {.kind = WIRE_UNIT,
                                .object = (uint32_t)p->unit,
                                .bytes = out,
                                .total = (uint32_t)bytes,
                                .hash = wire_object_hash(out, bytes),
                                .key = p->key,
                                .file = s->file,
                                .name = s->name};
    atomic_fetch_add(&f->units_sent, 1);
    rc = net__put(p->duck, &put);
    if (rc) return error_set(err, rc, "no memory to queue a weight unit");
    return wait_queue(f, QUEUED_MOST, err);
}

int net_load(struct net_flock *f, const struct net_unit_source *s, uint64_t *where, struct error *err)
{
    int rc = net_failure(f, err);
    for (uint32_t i = f->bank_run[s->bank]; rc == 0 && i < f->bank_run[s->bank + 1]; i++) {
        struct part p = part_of(f, s, i);
        if (is_held(f, &p)) {
            atomic_fetch_add(&f->units_kept, 1);
        } else {
            rc = send_unit(f, &p, s, where, err);
        }
    }
    if (f->wake) f->wake(f->wake_self);
    keep_now_and_then(f);
    return rc;
}

int net_load_finish(struct net_flock *f, struct error *err)
{
    return wait_queue(f, 0, err);
}
