/* manifest.c: a hash table in a file. Written beside the old one and renamed, so that a crash leaves one of
 * them whole; a hash over the entries shows damage. */
#include "host/flock/net/manifest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "duck/wire.h"
#include "host/util/log.h"

#define MANIFEST_MAGIC 0x316e616d6b637564u // "duckman1"
#define MOST_ENTRIES ((size_t)1 << 28)

struct head {
    uint64_t magic, entries, hash;
};

static int enter(struct manifest *m, uint64_t key, uint64_t hash);

static int grow(struct manifest *m)
{
    struct manifest bigger = {.capacity = m->capacity ? 2 * m->capacity : 1024};
    bigger.entry = calloc(bigger.capacity, sizeof *bigger.entry);
    if (!bigger.entry) return -ENOMEM;
    for (size_t i = 0; i < m->capacity; i++)
        if (m->entry[i].key) enter(&bigger, m->entry[i].key, m->entry[i].hash);
    free(m->entry);
    m->entry = bigger.entry;
    m->capacity = bigger.capacity;
    return 0;
}

static size_t find(const struct manifest *m, uint64_t key)
{
    size_t i = key & (m->capacity - 1);
    while (m->entry[i].key && m->entry[i].key != key) i = (i + 1) & (m->capacity - 1);
    return i;
}

uint64_t manifest_get(struct manifest *m, uint64_t key)
{
    pthread_mutex_lock(&m->mutex);
    uint64_t hash = m->capacity ? m->entry[find(m, key)].hash : 0;
    pthread_mutex_unlock(&m->mutex);
    return hash;
}

static int enter(struct manifest *m, uint64_t key, uint64_t hash)
{
    if (2 * (m->used + 1) > m->capacity) {
        int rc = grow(m);
        if (rc) return rc;
    }
    struct manifest_entry *e = &m->entry[find(m, key)];
    if (!e->key) m->used++;
    if (e->key != key || e->hash != hash) m->changed = true;
    *e = (struct manifest_entry){key, hash};
    return 0;
}

int manifest_put(struct manifest *m, uint64_t key, uint64_t hash)
{
    pthread_mutex_lock(&m->mutex);
    int rc = enter(m, key, hash);
    pthread_mutex_unlock(&m->mutex);
    return rc;
}

void manifest_read(struct manifest *m, const char *path)
{
    *m = (struct manifest){0};
    FILE *f = fopen(path, "rbe");
    if (!f) return;
    struct head h;
    struct manifest_entry *entry = NULL;
    bool good = false;
    if (fread(&h, sizeof h, 1, f) == 1 && h.magic == MANIFEST_MAGIC && h.entries <= MOST_ENTRIES)
        entry = malloc(h.entries * sizeof *entry + 1);
    if (entry && fread(entry, sizeof *entry, h.entries, f) == h.entries &&
        wire_object_hash((const uint8_t *)entry, h.entries * sizeof *entry) == h.hash) {
        good = true;
        for (size_t i = 0; i < h.entries; i++)
            if (entry[i].key && enter(m, entry[i].key, entry[i].hash)) break;
    }
    if (!good) log_notice("%s is damaged or of another version: all weights will be sent again", path);
    m->changed = false;
    free(entry);
    fclose(f);
}

/* The entries without the gaps; the caller frees them. */
static struct manifest_entry *packed(const struct manifest *m)
{
    struct manifest_entry *out = malloc(m->used * sizeof *out + 1);
    size_t n = 0;
    for (size_t i = 0; out && i < m->capacity; i++)
        if (m->entry[i].key) out[n++] = m->entry[i];
    return out;
}

static int write_file(struct manifest *m, const char *path, struct error *err)
{
    char beside[600];
    snprintf(beside, sizeof beside, "%s.new", path);
    pthread_mutex_lock(&m->mutex);
    struct manifest_entry *entry = packed(m);
    size_t used = m->used;
    m->changed = false;
    pthread_mutex_unlock(&m->mutex);
    if (!entry) return error_set(err, -ENOMEM, "no memory for %zu entries of %s", used, path);
    FILE *f = fopen(beside, "wbe");
    bool good = f != NULL;
    if (f) {
        struct head h = {.magic = MANIFEST_MAGIC,
                         .entries = used,
                         .hash = wire_object_hash((const uint8_t *)entry, used * sizeof *entry)};
        good = fwrite(&h, sizeof h, 1, f) == 1 && fwrite(entry, sizeof *entry, used, f) == used;
        good = fclose(f) == 0 && good;
    }
    free(entry);
    if (good && rename(beside, path) == 0) return 0;
    int code = errno;
    unlink(beside);
    return error_set(err, -code, "%s cannot be written: %s", path, strerror(code));
}

int manifest_write(struct manifest *m, const char *path, struct error *err)
{
    pthread_mutex_lock(&m->file);
    int rc = write_file(m, path, err);
    pthread_mutex_unlock(&m->file);
    return rc;
}

void manifest_free(struct manifest *m)
{
    free(m->entry);
    *m = (struct manifest){0};
}
