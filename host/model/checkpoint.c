/* checkpoint.c: opens a checkpoint directory: index, shards, mappings, the table of names.
 *
 * Files are closed once mapped; a mapping outlives its descriptor, so the number of shards is not bound by
 * the limit of open files. A file that shrinks while it is mapped faults; published checkpoints do not. */
#include "host/model/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/model/json.h"
#include "host/model/safetensors.h"

#define INDEX_FILE "model.safetensors.index.json"
#define SINGLE_FILE "model.safetensors"
#define MAX_INDEX_BYTES ((size_t)256 << 20) // the full model's index has 9 MB

struct shard {
    char *path;
    void *image; // mapped, NULL if the file is not (yet)
    size_t bytes;
    struct safetensors header;
};

/* One line of the table of names. */
struct name_entry {
    const struct tensor *tensor;
};

struct checkpoint {
    struct shard *shards; // (shard_count) by ascending name
    uint32_t shard_count;
    struct tensor *tensors;     // (tensor_count) by (file, offset)
    struct name_entry *by_name; // (tensor_count) by ascending name
    size_t tensor_count;
    char *dir;
};

/* One line of the index: this tensor is in that shard. */
struct index_entry {
    const char *tensor, *shard;
};

static int map_shard(struct shard *s, struct error *err)
{
    const char *name = json_path_tail(s->path);
    int fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a FIFO is refused, not waited for
    if (fd < 0) return error_set(err, -errno, "%s: cannot open shard: %s", name, strerror(errno));
    struct stat st;
    int rc = 0;
    if (fstat(fd, &st) < 0) {
        rc = error_set(err, -errno, "%s: %s", name, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        rc = error_set(err, -EINVAL, "%s: not a regular file", name);
    } else if (st.st_size < 8) {
        rc = error_set(err, -EINVAL, "%s: %lld bytes, a safetensors file has at least 8", name,
                       (long long)st.st_size);
    } else {
        s->bytes = (size_t)st.st_size;
        s->image = mmap(NULL, s->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (s->image == MAP_FAILED) {
            rc = error_set(err, -errno, "%s: cannot map %zu bytes: %s", name, s->bytes, strerror(errno));
            s->image = NULL;
        }
    }
    close(fd);
    if (rc) return rc;
    return safetensors_parse(&s->header, s->image, s->bytes, s->path, err);
}

static int compare_entries(const void *a, const void *b)
{
    const struct index_entry *x = a, *y = b;
    int by_shard = strcmp(x->shard, y->shard);
    return by_shard ? by_shard : strcmp(x->tensor, y->tensor);
}

static int add_shard(struct checkpoint *c, const char *file, struct error *err)
{
    struct shard *s = &c->shards[c->shard_count];
    if (asprintf(&s->path, "%s/%s", c->dir, file) < 0) {
        s->path = NULL;
        return error_set(err, -ENOMEM, "%s: no memory", json_path_tail(c->dir));
    }
    c->shard_count++;
    return map_shard(s, err);
}

/* A shard lies beside the index: any path in it could lead out of the directory. */
static int check_shard_name(const char *index_path, const cJSON *item, struct error *err)
{
    const char *name = cJSON_IsString(item) ? item->valuestring : "";
    bool plain = *name && strlen(name) <= 255 && !strchr(name, '/') && strcmp(name, ".") != 0 &&
                 strcmp(name, "..") != 0;
    for (const char *p = name; *p; p++) plain &= (unsigned char)*p >= 0x20 && *p != 0x7f;
    if (plain) return 0;
    return error_set(err, -EINVAL,
                     "%s: tensor %.150s: shard is %s, must be a file name in the same directory",
                     json_path_tail(index_path), item->string, json_show(item).s);
}

/* Fills entries (sorted) from the weight map. */
static int read_weight_map(const char *path, const cJSON *root, struct index_entry **entries, size_t *count,
                           struct error *err)
{
    const cJSON *map = json_get(root, "weight_map");
    if (!cJSON_IsObject(map) || !map->child)
        return error_set(err, -EINVAL, "%s: weight_map is %s, must be an object that names tensors",
                         json_path_tail(path), cJSON_IsObject(map) ? "empty" : json_show(map).s);
    size_t n = (size_t)cJSON_GetArraySize(map);
    struct index_entry *e = calloc(n, sizeof *e);
    if (!e) return error_set(err, -ENOMEM, "%s: no memory for %zu tensors", json_path_tail(path), n);
    *entries = e;
    for (const cJSON *i = map->child; i; i = i->next) {
        int rc = check_shard_name(path, i, err);
        if (rc) return rc;
        e[(*count)++] = (struct index_entry){.tensor = i->string, .shard = i->valuestring};
    }
    qsort(e, n, sizeof *e, compare_entries);
    return 0;
}

static int open_listed_shards(struct checkpoint *c, const struct index_entry *e, size_t count,
                              struct error *err)
{
    size_t shards = 1;
    for (size_t i = 1; i < count; i++) shards += strcmp(e[i].shard, e[i - 1].shard) != 0;
    c->shards = calloc(shards, sizeof *c->shards);
    if (!c->shards) return error_set(err, -ENOMEM, "%s: no memory", json_path_tail(c->dir));
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && strcmp(e[i].shard, e[i - 1].shard) == 0) continue;
        int rc = add_shard(c, e[i].shard, err);
        if (rc) return rc;
    }
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    const struct name_entry *x = a, *y = b;
    return strcmp(x->tensor->name, y->tensor->name);
}

/* Sorts the names; no tensor may be there twice. */
static int index_names(struct checkpoint *c, struct error *err)
{
    c->by_name = calloc(c->tensor_count + 1, sizeof *c->by_name);
    if (!c->by_name)
        return error_set(err, -ENOMEM, "%s: no memory for %zu tensors", json_path_tail(c->dir),
                         c->tensor_count);
    for (size_t i = 0; i < c->tensor_count; i++) c->by_name[i].tensor = &c->tensors[i];
    if (c->tensor_count) qsort(c->by_name, c->tensor_count, sizeof *c->by_name, compare_names);
    for (size_t i = 1; i < c->tensor_count; i++)
        if (strcmp(c->by_name[i - 1].tensor->name, c->by_name[i].tensor->name) == 0)
            return error_set(err, -EINVAL, "%s: tensor %s is also in %s",
                             json_path_tail(c->shards[c->by_name[i].tensor->file].path),
                             c->by_name[i].tensor->name,
                             json_path_tail(c->shards[c->by_name[i - 1].tensor->file].path));
    return 0;
}

/* Moves the shards' tensors into one table and sorts the names. */
static int build_table(struct checkpoint *c, struct error *err)
{
    for (uint32_t f = 0; f < c->shard_count; f++) c->tensor_count += c->shards[f].header.count;
    c->tensors = calloc(c->tensor_count + 1, sizeof *c->tensors);
    if (!c->tensors)
        return error_set(err, -ENOMEM, "%s: no memory for %zu tensors", json_path_tail(c->dir),
                         c->tensor_count);
    size_t n = 0;
    for (uint32_t f = 0; f < c->shard_count; f++) {
        struct safetensors *s = &c->shards[f].header;
        for (size_t i = 0; i < s->count; i++, n++) {
            c->tensors[n] = s->tensors[i];
            c->tensors[n].file = f;
        }
        free(s->tensors); // the names stay
        s->tensors = NULL;
    }
    return index_names(c, err);
}

/* What the index says must be true; tensors that it does not mention are welcome. */
static int check_index(const struct checkpoint *c, const struct index_entry *e, size_t count,
                       struct error *err)
{
    uint32_t shard = 0;
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && strcmp(e[i].shard, e[i - 1].shard) != 0) shard++; // both sorted the same way
        const struct tensor *t = checkpoint_find(c, e[i].tensor);
        const char *path = json_path_tail(c->shards[shard].path);
        if (!t)
            return error_set(err, -EINVAL,
                             "%s: tensor %.200s is missing, but " INDEX_FILE " says it is there", path,
                             e[i].tensor);
        if (t->file != shard)
            return error_set(err, -EINVAL,
                             "%s: tensor %s is missing, " INDEX_FILE " says it is there, but it is in %s",
                             path, t->name, strrchr(c->shards[t->file].path, '/') + 1);
    }
    return 0;
}

static int open_indexed(struct checkpoint *c, const char *path, struct error *err)
{
    cJSON *root;
    int rc = json_read(&root, path, MAX_INDEX_BYTES, err);
    if (rc) return rc;
    struct index_entry *entries = NULL;
    size_t count = 0;
    rc = read_weight_map(path, root, &entries, &count, err);
    if (!rc) rc = open_listed_shards(c, entries, count, err);
    if (!rc) rc = build_table(c, err);
    if (!rc) rc = check_index(c, entries, count, err);
    free(entries);
    cJSON_Delete(root);
    return rc;
}

static int open_single(struct checkpoint *c, struct error *err)
{
    c->shards = calloc(1, sizeof *c->shards);
    if (!c->shards) return error_set(err, -ENOMEM, "%s: no memory", json_path_tail(c->dir));
    int rc = add_shard(c, SINGLE_FILE, err);
    return rc ? rc : build_table(c, err);
}

/* Is there an entry of that name? A broken symlink counts: opening it then says what is wrong. */
static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static int open_dir(struct checkpoint *c, const char *dir, struct error *err)
{
    char *index_path = NULL, *single_path = NULL;
    c->dir = strdup(dir);
    if (asprintf(&index_path, "%s/" INDEX_FILE, dir) < 0) index_path = NULL;
    if (asprintf(&single_path, "%s/" SINGLE_FILE, dir) < 0) single_path = NULL;
    int rc;
    if (!c->dir || !index_path || !single_path)
        rc = error_set(err, -ENOMEM, "%s: no memory", json_path_tail(dir));
    else if (exists(index_path))
        rc = open_indexed(c, index_path, err);
    else if (exists(single_path))
        rc = open_single(c, err);
    else
        rc = error_set(err, -ENOENT, "%s: no checkpoint here: neither " INDEX_FILE " nor " SINGLE_FILE,
                       json_path_tail(dir));
    free(index_path);
    free(single_path);
    return rc;
}

int checkpoint_open(struct checkpoint **out, const char *dir, struct error *err)
{
    *out = NULL;
    struct checkpoint *c = calloc(1, sizeof *c);
    if (!c) return error_set(err, -ENOMEM, "%s: no memory", json_path_tail(dir));
    int rc = open_dir(c, dir, err);
    if (rc)
        checkpoint_close(c);
    else
        *out = c;
    return rc;
}

int checkpoint_of(struct checkpoint **out, const char *name, struct tensor *tensors, size_t count,
                  struct error *err)
{
    *out = NULL;
    struct checkpoint *c = calloc(1, sizeof *c);
    if (!c) return error_set(err, -ENOMEM, "%s: no memory", json_path_tail(name));
    c->dir = strdup(name);
    c->shards = calloc(1, sizeof *c->shards); // stands for all of them in messages
    if (c->shards) c->shards->path = strdup(name);
    c->tensors = tensors;
    c->tensor_count = count;
    int rc = c->dir && c->shards && c->shards->path
                 ? index_names(c, err)
                 : error_set(err, -ENOMEM, "%s: no memory", json_path_tail(name));
    c->shard_count = c->shards ? 1 : 0;
    if (rc) {
        c->tensors = NULL; // the caller's
        checkpoint_close(c);
    } else {
        *out = c;
    }
    return rc;
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c) return;
    for (uint32_t i = 0; i < c->shard_count; i++) {
        safetensors_free(&c->shards[i].header);
        if (c->shards[i].image) munmap(c->shards[i].image, c->shards[i].bytes);
        free(c->shards[i].path);
    }
    free(c->shards);
    free(c->tensors);
    free(c->by_name);
    free(c->dir);
    free(c);
}

uint32_t checkpoint_files(const struct checkpoint *c)
{
    return c->shard_count;
}
const char *checkpoint_file(const struct checkpoint *c, uint32_t file)
{
    return c->shards[file].path;
}
size_t checkpoint_tensors(const struct checkpoint *c)
{
    return c->tensor_count;
}
const struct tensor *checkpoint_tensor(const struct checkpoint *c, size_t i)
{
    return &c->tensors[i];
}

const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name)
{
    const struct tensor named = {.name = name};
    const struct name_entry key = {&named},
                            *hit = bsearch(&key, c->by_name, c->tensor_count, sizeof key, compare_names);
    return hit ? hit->tensor : NULL;
}
