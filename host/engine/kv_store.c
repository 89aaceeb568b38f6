/* kv_store.c: a file is header, ids, the backend's image, hash of the image. The index of all files is kept
 * in memory, under the mutex that the writing thread shares. */
#include "host/engine/kv_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "duck/siphash.h"
#include "host/util/clock.h"
#include "host/util/log.h"

#define SUFFIX ".kv"
#define MAX_FILES 1024u
#define WRITE_TIMEOUT_NS 120000000000u // for a file before this one, at the end

static const struct siphash_key plain_key = {0x6475636b64206b76u, KV_STORE_VERSION};

struct header {
    char magic[8];
    uint32_t version, positions, mtp_from, mtp_done;
    uint64_t conversation, identity, image_bytes;
    uint64_t ids_hash, hash; // of the ids; of everything before it
};
_Static_assert(sizeof(struct header) == 64, "the header has no holes");
static const char magic[8] = "duckdkv";

struct file {
    char name[32];
    struct header header;
    int32_t *ids;  // (positions)
    uint64_t used; // larger: more recently
};

struct kv_store {
    struct kv_store_options o;
    int dir, lock;
    pthread_t writer;
    bool writing_thread;

    pthread_mutex_t mutex;
    pthread_cond_t wake;
    struct file file[MAX_FILES];
    uint32_t count;
    uint64_t clock;
    uint8_t *pending; // a whole file to be written; its header is at the start
    uint64_t rest_ns; // no hurry to write before
    bool closing;
};

/* ---- the index, under the mutex ---- */

static uint64_t file_bytes(const struct header *h)
{
    return sizeof *h + h->positions * sizeof(int32_t) + h->image_bytes + sizeof(uint64_t);
}

static uint64_t all_bytes(const struct kv_store *s)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < s->count; i++) sum += file_bytes(&s->file[i].header);
    return sum;
}

static uint64_t conversation_bytes(const struct kv_store *s)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < s->count; i++)
        if (s->file[i].header.conversation) sum += file_bytes(&s->file[i].header);
    return sum;
}

static void forget(struct kv_store *s, uint32_t i, bool remove)
{
    if (remove && unlinkat(s->dir, s->file[i].name, 0) && errno != ENOENT)
        log_notice("%s/%s: cannot be removed: %s", s->o.dir, s->file[i].name, strerror(errno));
    free(s->file[i].ids);
    s->file[i] = s->file[--s->count];
}

static void keep_budget(struct kv_store *s, uint32_t more_files)
{
    while (s->count && (all_bytes(s) > s->o.budget_bytes || s->count + more_files > MAX_FILES)) {
        bool spare = conversation_bytes(s) <= s->o.budget_bytes / 4 * 3;
        uint32_t worst = 0;
        for (uint32_t i = 1; i < s->count; i++) {
            const struct file *f = &s->file[i], *w = &s->file[worst];
            bool differ = spare && f->header.conversation != w->header.conversation;
            if (differ ? w->header.conversation : f->used < w->used) worst = i;
        }
        forget(s, worst, true);
    }
}

static uint32_t common(const struct file *f, const int32_t *ids, uint32_t count)
{
    uint32_t n = 0, end = f->header.positions < count ? f->header.positions : count;
    while (n < end && f->ids[n] == ids[n]) n++;
    return n;
}

static uint32_t best_file(const struct kv_store *s, const int32_t *ids, uint32_t count, uint32_t *most)
{
    uint32_t best = s->count;
    *most = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        uint32_t n = common(&s->file[i], ids, count);
        if (n <= *most) continue;
        *most = n;
        best = i;
    }
    return best;
}

/* Its time on disk is what the next process knows about when it was used. */
static void touch(struct kv_store *s, struct file *f)
{
    f->used = ++s->clock;
    utimensat(s->dir, f->name, NULL, 0);
}

uint32_t kv_store_find(struct kv_store *s, const int32_t *ids, uint32_t count, uint32_t *positions)
{
    uint32_t most;
    pthread_mutex_lock(&s->mutex);
    uint32_t best = best_file(s, ids, count, &most);
    *positions = best < s->count ? s->file[best].header.positions : 0;
    pthread_mutex_unlock(&s->mutex);
    return most;
}

/* ---- writing ---- */

static void file_name(char *name, size_t size, const struct header *h)
{
    snprintf(name, size, "%016llx" SUFFIX,
             (unsigned long long)(h->ids_hash ^ h->identity * 0x9e3779b97f4a7c15u));
}

static int write_all(int fd, const uint8_t *data, uint64_t bytes)
{
    while (bytes) {
        ssize_t n = write(fd, data, bytes < (1u << 30) ? bytes : 1u << 30);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? -errno : -EIO;
        data += n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

static int write_file(struct kv_store *s, uint8_t *whole, const char *name)
{
    struct header *h = (struct header *)(void *)whole;
    uint64_t bytes = file_bytes(h), from = bytes - sizeof(uint64_t) - h->image_bytes;
    uint64_t hash = siphash(&plain_key, whole + from, h->image_bytes);
    memcpy(whole + bytes - sizeof hash, &hash, sizeof hash);
    char temporary[48];
    snprintf(temporary, sizeof temporary, "%s.tmp", name);
    int fd = openat(s->dir, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return -errno;
    int rc = write_all(fd, whole, bytes);
    if (!rc && fsync(fd)) rc = -errno;
    if (close(fd) && !rc) rc = -errno;
    if (!rc && renameat(s->dir, temporary, s->dir, name)) rc = -errno;
    if (rc) unlinkat(s->dir, temporary, 0);
    return rc;
}

/* The new file takes the place of those that it begins with. */
static void enter(struct kv_store *s, const uint8_t *whole, const char *name)
{
    const struct header *h = (const struct header *)(const void *)whole;
    const int32_t *ids = (const int32_t *)(const void *)(whole + sizeof *h);
    struct file f = {.header = *h, .used = ++s->clock, .ids = malloc(h->positions * sizeof *ids)};
    snprintf(f.name, sizeof f.name, "%s", name);
    if (!f.ids) return; // the next process will see it
    memcpy(f.ids, ids, h->positions * sizeof *ids);
    for (uint32_t i = 0; i < s->count;) {
        struct file *old = &s->file[i];
        if (common(old, ids, h->positions) == old->header.positions)
            forget(s, i, strcmp(old->name, name) != 0);
        else
            i++;
    }
    keep_budget(s, 1);
    s->file[s->count++] = f;
    keep_budget(s, 0);
}

static void *writer(void *arg)
{
    struct kv_store *s = arg;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        while (!s->pending && !s->closing) pthread_cond_wait(&s->wake, &s->mutex);
        if (!s->pending) break;
        uint8_t *whole = s->pending;
        char name[32];
        file_name(name, sizeof name, (const struct header *)(const void *)whole);
        pthread_mutex_unlock(&s->mutex);
        const uint64_t began = clock_ns();
        int rc = write_file(s, whole, name);
        const uint64_t ended = clock_ns();
        if (rc) log_notice("%s/%s: cannot be written: %s", s->o.dir, name, strerror(-rc));
        pthread_mutex_lock(&s->mutex);
        if (!rc) enter(s, whole, name);
        s->pending = NULL;
        s->rest_ns = ended + 3 * (ended - began);
        free(whole);
        pthread_cond_broadcast(&s->wake);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

bool kv_store_rests(struct kv_store *s)
{
    pthread_mutex_lock(&s->mutex);
    bool rests = s->pending || clock_ns() < s->rest_ns;
    pthread_mutex_unlock(&s->mutex);
    return rests;
}

/* True: there is room for a file of these ids, and nothing that has them already. */
static bool wanted(struct kv_store *s, const struct sequence *q, uint64_t bytes, bool may_wait)
{
    uint32_t most, n = q->main_done;
    pthread_mutex_lock(&s->mutex);
    const uint64_t until = clock_ns() + WRITE_TIMEOUT_NS;
    while (s->pending && may_wait)
        if (!clock_wait(&s->wake, &s->mutex, until)) break;
    uint32_t best = best_file(s, q->ids, n, &most);
    if (most == n) touch(s, &s->file[best]);
    bool want = !s->pending && most < n && n >= KV_STORE_MIN && bytes <= s->o.budget_bytes;
    pthread_mutex_unlock(&s->mutex);
    return want;
}

void kv_store_save(struct kv_store *s, const struct sequence *q, bool conversation, bool may_wait)
{
    struct backend *b = s->o.backend;
    struct header h = {.version = KV_STORE_VERSION,
                       .positions = q->main_done,
                       .mtp_from = q->mtp_from,
                       .mtp_done = q->mtp_done,
                       .conversation = conversation,
                       .identity = s->o.identity,
                       .image_bytes = b->ops->kv_bytes(b, q->main_done)};
    memcpy(h.magic, magic, sizeof magic);
    if (!wanted(s, q, file_bytes(&h), may_wait)) return;
    uint8_t *whole = malloc(file_bytes(&h));
    if (!whole) return; // a cache: it will be computed again
    size_t ids_bytes = h.positions * sizeof *q->ids;
    h.ids_hash = siphash(&plain_key, q->ids, ids_bytes);
    h.hash = siphash(&plain_key, &h, sizeof h - sizeof h.hash);
    memcpy(whole, &h, sizeof h);
    memcpy(whole + sizeof h, q->ids, ids_bytes);
    struct error err;
    if (b->ops->kv_save(b, q->handle, h.positions, whole + sizeof h + ids_bytes, &err)) {
        log_notice("%s: the KV of %u tokens is not saved: %s", s->o.dir, h.positions, err.text);
        free(whole);
        return;
    }
    pthread_mutex_lock(&s->mutex);
    s->pending = whole;
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->mutex);
}

/* ---- reading ---- */

static int read_at(int fd, void *out, uint64_t bytes, uint64_t from)
{
    uint8_t *to = out;
    while (bytes) {
        ssize_t n = pread(fd, to, bytes < (1u << 30) ? bytes : 1u << 30, (off_t)from);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? -errno : -ENODATA;
        to += n;
        from += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

static int check_header(const struct kv_store *s, const struct header *h, uint64_t size, struct error *err)
{
    struct backend *b = s->o.backend;
    if (memcmp(h->magic, magic, sizeof magic) != 0) return error_set(err, -EINVAL, "no file of a KV store");
    if (h->version != KV_STORE_VERSION)
        return error_set(err, -EINVAL, "is of version %u, this program writes %u", h->version,
                         KV_STORE_VERSION);
    if (h->hash != siphash(&plain_key, h, sizeof *h - sizeof h->hash))
        return error_set(err, -EINVAL, "damaged: the header's hash is wrong");
    if (h->identity != s->o.identity)
        return error_set(err, -EINVAL, "belongs to another model or other settings (%016llx, here %016llx)",
                         (unsigned long long)h->identity, (unsigned long long)s->o.identity);
    if (h->image_bytes != b->ops->kv_bytes(b, h->positions) || file_bytes(h) != size)
        return error_set(err, -EINVAL, "damaged: has %llu bytes, its header says %llu",
                         (unsigned long long)size, (unsigned long long)file_bytes(h));
    return 0;
}

/* Header and ids of a file. */
static int read_head(struct kv_store *s, const char *name, struct file *out, int64_t *time, struct error *err)
{
    struct stat st = {0};
    int fd = openat(s->dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); // no wait for a FIFO
    int rc = fd < 0 || fstat(fd, &st) ? -errno : 0;
    *out = (struct file){0};
    snprintf(out->name, sizeof out->name, "%s", name);
    bool regular = !rc && S_ISREG(st.st_mode);
    if (regular) rc = read_at(fd, &out->header, sizeof out->header, 0);
    if (rc || !regular) {
        if (fd >= 0) close(fd);
        if (!rc) return error_set(err, -EINVAL, "not a regular file");
        return rc == -ENODATA ? error_set(err, rc, "damaged: it has %lld bytes, its header alone has %zu",
                                          (long long)st.st_size, sizeof out->header)
                              : error_set(err, rc, "cannot be read: %s", strerror(-rc));
    }
    *time = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    rc = check_header(s, &out->header, (uint64_t)st.st_size, err);
    size_t bytes = out->header.positions * sizeof *out->ids;
    if (!rc) out->ids = malloc(bytes ? bytes : 1);
    if (!rc && !out->ids) rc = error_set(err, -ENOMEM, "out of memory");
    if (!rc && (read_at(fd, out->ids, bytes, sizeof out->header) ||
                siphash(&plain_key, out->ids, bytes) != out->header.ids_hash))
        rc = error_set(err, -EINVAL, "damaged: the hash of its tokens is wrong");
    close(fd);
    if (rc) free(out->ids);
    return rc;
}

/* The image of a file whose head is known. */
static uint8_t *read_image(struct kv_store *s, const struct file *f, struct error *err)
{
    uint64_t bytes = f->header.image_bytes, from = file_bytes(&f->header) - sizeof(uint64_t) - bytes, hash;
    int fd = openat(s->dir, f->name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    uint8_t *image = malloc(bytes ? bytes : 1);
    int rc = fd < 0 ? -errno : image ? 0 : -ENOMEM;
    if (!rc) rc = read_at(fd, image, bytes, from);
    if (!rc) rc = read_at(fd, &hash, sizeof hash, from + bytes);
    if (fd >= 0) close(fd);
    if (rc)
        error_set(err, rc, "cannot be read: %s", strerror(-rc));
    else if (hash != siphash(&plain_key, image, bytes))
        rc = error_set(err, -EINVAL, "damaged: the hash of its KV is wrong");
    if (!rc) return image;
    free(image);
    return NULL;
}

static int load(struct kv_store *s, struct file *f, struct sequence *out, struct error *err)
{
    struct backend *b = s->o.backend;
    uint32_t n = f->header.positions;
    int rc = sequence_open(out, b, &(struct sequence_start){f->ids, n, n, n}, err);
    if (rc) return rc;
    uint8_t *image = read_image(s, f, err);
    rc = image ? b->ops->kv_load(b, out->handle, n, image, err) : -EINVAL;
    free(image);
    if (rc) {
        sequence_close(out);
        return rc;
    }
    out->main_done = n;
    out->mtp_from = f->header.mtp_from;
    out->mtp_done = f->header.mtp_done < n ? f->header.mtp_done : n;
    return 0;
}

int kv_store_load(struct kv_store *s, const int32_t *ids, uint32_t count, struct sequence *out,
                  bool *conversation)
{
    uint32_t most;
    struct error err;
    pthread_mutex_lock(&s->mutex);
    uint32_t best = best_file(s, ids, count, &most);
    int rc = best < s->count ? 0 : -ENOENT;
    if (!rc) {
        struct file *f = &s->file[best];
        *conversation = f->header.conversation;
        rc = load(s, f, out, &err);
        if (!rc) {
            touch(s, f);
        } else if (rc != -ENOMEM && rc != -EBUSY) {
            log_notice("%s/%s: %s", s->o.dir, f->name, err.text);
            forget(s, best, false);
        }
    }
    pthread_mutex_unlock(&s->mutex);
    return rc;
}

/* ---- opening ---- */

static bool has_suffix(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && !strcmp(name + n - m, suffix);
}

static void scan(struct kv_store *s, DIR *list)
{
    int64_t time[MAX_FILES] = {0};
    for (struct dirent *d; (d = readdir(list));) {
        struct file f;
        struct error err;
        if (has_suffix(d->d_name, SUFFIX ".tmp")) unlinkat(s->dir, d->d_name, 0); // of a process that died
        if (!has_suffix(d->d_name, SUFFIX) || s->count == MAX_FILES) continue;
        if (strlen(d->d_name) >= sizeof f.name)
            log_notice("%s/%s: no file of a KV store", s->o.dir, d->d_name);
        else if (read_head(s, d->d_name, &f, &time[s->count], &err))
            log_notice("%s/%s: %s", s->o.dir, d->d_name, err.text);
        else
            s->file[s->count++] = f;
    }
    for (uint32_t i = 0; i < s->count; i++) // rank by time
        for (uint32_t k = 0; k < s->count; k++) s->file[i].used += time[k] < time[i];
    s->clock = s->count;
    keep_budget(s, 0);
}

static int open_dir(struct kv_store *s, struct error *err)
{
    const char *dir = s->o.dir;
    if (mkdir(dir, 0700) && errno != EEXIST)
        return error_set(err, -errno, "%s: cannot be made: %s", dir, strerror(errno));
    s->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->dir < 0) return error_set(err, -errno, "%s: cannot be opened: %s", dir, strerror(errno));
    s->lock = openat(s->dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->lock < 0) return error_set(err, -errno, "%s/lock: cannot be made: %s", dir, strerror(errno));
    if (flock(s->lock, LOCK_EX | LOCK_NB))
        return error_set(err, -EBUSY, "%s: another duckd keeps its KV there", dir);
    int copy = dup(s->dir);
    DIR *list = copy < 0 ? NULL : fdopendir(copy);
    if (!list) {
        int rc = error_set(err, -errno, "%s: cannot be listed: %s", dir, strerror(errno));
        if (copy >= 0) close(copy);
        return rc;
    }
    scan(s, list);
    closedir(list);
    return 0;
}

int kv_store_open(struct kv_store **out, const struct kv_store_options *o, struct error *err)
{
    const struct backend_ops *ops = o->backend->ops;
    if (!ops->kv_bytes)
        return error_set(err, -ENOTSUP, "%s: the %s backend cannot save its KV yet", o->dir, ops->name);
    struct kv_store *s = calloc(1, sizeof *s);
    if (!s) return error_set(err, -ENOMEM, "out of memory for the KV store");
    s->o = *o;
    s->dir = s->lock = -1;
    s->o.dir = strdup(o->dir);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->wake, NULL);
    int rc = s->o.dir ? open_dir(s, err) : error_set(err, -ENOMEM, "out of memory for the KV store");
    if (!rc) {
        int failed = pthread_create(&s->writer, NULL, writer, s);
        s->writing_thread = failed == 0;
        if (failed) rc = error_set(err, -failed, "no thread to write KV: %s", strerror(failed));
    }
    if (rc) {
        kv_store_close(s);
        return rc;
    }
    log_detail("%s: KV of %u text%s, %.1f MB", o->dir, s->count, s->count == 1 ? "" : "s",
               (double)all_bytes(s) * 1e-6);
    *out = s;
    return 0;
}

void kv_store_close(struct kv_store *s)
{
    if (!s) return;
    if (s->writing_thread) {
        pthread_mutex_lock(&s->mutex);
        s->closing = true;
        pthread_cond_broadcast(&s->wake);
        pthread_mutex_unlock(&s->mutex);
        pthread_join(s->writer, NULL);
    }
    while (s->count) forget(s, 0, false);
    if (s->lock >= 0) close(s->lock);
    if (s->dir >= 0) close(s->dir);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->mutex);
    free((char *)(uintptr_t)s->o.dir);
    free(s);
}
