/* kv_restore.c: between the prefix cache and its files: what the cache holds is written down when it has been
 * there for a moment, or when it is given up; what a prompt could use is brought back. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "duck/siphash.h"
#include "host/engine/engine_internal.h"
#include "host/util/clock.h"

/* Positions more than the cache has, for which a file is read. */
#define WORTH_READING 8u

#define QUIET_NS 500000000u // so that a text that goes on at once is not written twice
#define LOOK_NS 100000000u  // between two looks while there is something to write

/* On the side of other work only conversations are saved, and none while another file is being written; when
 * the engine closes, everything. */
static void on_drop(void *ctx, const struct sequence *s, bool conversation, bool closing)
{
    struct engine *e = ctx;
    if (conversation || closing) kv_store_save(e->store, s, conversation, closing);
}

enum prefix_reuse engine__reuse(const struct engine *e)
{
    return !e->set.mtp ? PREFIX_MAIN : e->set.mtp_window ? PREFIX_EITHER : PREFIX_ALL;
}

/* Other weights, another shape or another arithmetic. Files are told apart by name, size and times, as a
 * restart must not read them all: of the last change too, which copying and unpacking cannot set. */
uint64_t engine__kv_identity(const struct engine *e, const struct engine_options *o)
{
    const struct model *m = e->model;
    char path[4200], text[512];
    static const struct siphash_key key = {1, 2};
    uint64_t sum = 0;
    int n =
        snprintf(text, sizeof text, "%s %d %d %u %u %u %u %llu", e->backend->ops->name, e->set.mtp,
                 e->backend->shared, o->kv_dtype_set ? o->kv_dtype + 1u : 0u, (unsigned)o->wire_activation,
                 (unsigned)o->wire_result, m->config.layers, (unsigned long long)e->set.bytes_per_position);
    sum ^= siphash(&key, text, (size_t)n);
    for (uint32_t i = 0; i <= checkpoint_files(m->checkpoint); i++) {
        struct stat st;
        if (i < checkpoint_files(m->checkpoint))
            snprintf(path, sizeof path, "%s", checkpoint_file(m->checkpoint, i));
        else
            snprintf(path, sizeof path, "%s/config.json", m->dir);
        if (stat(path, &st)) continue;
        const char *name = strrchr(path, '/');
        n = snprintf(text, sizeof text, "%llx %s %lld %lld %ld %lld %ld", (unsigned long long)sum,
                     name ? name : path, (long long)st.st_size, (long long)st.st_mtim.tv_sec,
                     st.st_mtim.tv_nsec, (long long)st.st_ctim.tv_sec, st.st_ctim.tv_nsec);
        sum = siphash(&key, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
    }
    return sum;
}

int engine__open_store(struct engine *e, const struct kv_store_options *o, struct error *err)
{
    int rc = kv_store_open(&e->store, o, err);
    if (!rc) prefix_cache_on_drop(e->prefixes, on_drop, e);
    return rc;
}

void engine__restore(struct engine *e, const int32_t *ids, uint32_t count)
{
    struct sequence kept;
    bool conversation;
    uint32_t have = prefix_cache_match(e->prefixes, ids, count, engine__reuse(e)), all;
    if (kv_store_find(e->store, ids, count, &all) < have + WORTH_READING) return;
    if (all * e->set.bytes_per_position > e->set.prefix_cache_bytes) return; // the cache would not keep it
    int rc;
    do {
        rc = kv_store_load(e->store, ids, count, &kept, &conversation);
    } while (prefix_cache_makes_way(e->prefixes, rc));
    if (!rc) prefix_cache_keep(e->prefixes, &kept, conversation);
}

uint64_t engine_write_behind(struct engine *e)
{
    bool conversation, later;
    if (!e->store) return UINT64_MAX;
    if (kv_store_rests(e->store)) return LOOK_NS;
    const struct sequence *s =
        prefix_cache_unsaved(e->prefixes, clock_ns() - QUIET_NS, &conversation, &later);
    if (s) kv_store_save(e->store, s, conversation, false);
    return s || later ? LOOK_NS : UINT64_MAX;
}
