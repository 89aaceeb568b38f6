/* synthetic.c: see synthetic.h. A pool holds the values of one kind of tensor: one tile of memory, mapped
 * side by side until the largest tensor of its kind fits, plus a tile, so that tensors can begin anywhere in
 * it. */
#include "host/model/synthetic.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/model/json.h"
#include "host/model/random_weights.h"

#define TILE_BYTES ((size_t)64 << 20) // beyond the caches of the machines this runs on, mostly
#define PAGE ((size_t)4096)
#define MAX_POOLS 64u // a model has about twenty
#define MAX_CONFIG_BYTES ((size_t)1 << 20)

struct value_pool {
    enum random_kind kind;
    float mean, std;
    const struct random_tensor *largest;
    size_t tile, mapped;
    uint8_t *data;
};

struct synthetic {
    struct random_model random;
    struct value_pool pool[MAX_POOLS];
    uint32_t pools;
};

int synthetic_config_read(struct model_config *out, struct synthetic_format *format, const char *path,
                          struct error *err)
{
    char file[4200];
    struct stat st;
    cJSON *root;
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    snprintf(file, sizeof file, "%.4096s%s", path, folder ? "/config.json" : "");
    int rc = json_read(&root, file, MAX_CONFIG_BYTES, err);
    if (rc) return rc;
    const cJSON *quantization = json_get(root, "quantization_config");
    const char *scales = quantization ? cJSON_GetStringValue(json_get(quantization, "scale_fmt")) : NULL;
    *format = (struct synthetic_format){quantization != NULL, scales && !strcmp(scales, "ue8m0")};
    char *text = cJSON_PrintUnformatted(root);
    rc = text ? model_config_parse(out, text, strlen(text), file, err)
              : error_set(err, -ENOMEM, "%s: no memory", file);
    free(text);
    cJSON_Delete(root);
    return rc;
}

/* fp8 codes are the same whatever scales bring them to. */
static bool belongs(const struct value_pool *p, const struct random_tensor *t)
{
    return p->kind == t->kind && (t->kind == RANDOM_FP8 || (p->mean == t->mean && p->std == t->std));
}

static struct value_pool *pool_of(struct synthetic *s, const struct random_tensor *t)
{
    uint32_t i = 0;
    while (i < s->pools && !belongs(&s->pool[i], t)) i++;
    if (i == MAX_POOLS) return NULL;
    struct value_pool *p = &s->pool[i];
    if (i == s->pools) {
        *p = (struct value_pool){.kind = t->kind, .mean = t->mean, .std = t->std};
        s->pools++;
    }
    return p;
}

static size_t whole_pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* The tile as often as needed, one after the other. */
static int map_tiles(struct value_pool *p, int fd)
{
    for (size_t at = 0; at < p->mapped; at += p->tile) {
        size_t n = p->mapped - at < p->tile ? p->mapped - at : p->tile;
        if (mmap(p->data + at, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
            return -errno;
    }
    return 0;
}

static int fill_pool(const struct synthetic *s, struct value_pool *p)
{
    const struct random_tensor *t = p->largest;
    size_t bytes = whole_pages(t->bytes);
    p->tile = bytes < TILE_BYTES ? bytes : TILE_BYTES;
    p->mapped = bytes + (bytes > p->tile ? p->tile : 0);
    int fd = memfd_create("synthetic weights", MFD_CLOEXEC);
    if (fd < 0) return -errno;
    int rc = ftruncate(fd, (off_t)p->tile) ? -errno : 0;
    void *room = rc ? MAP_FAILED : mmap(NULL, p->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!rc && room == MAP_FAILED) rc = -errno;
    if (!rc) {
        p->data = room;
        rc = map_tiles(p, fd);
    }
    close(fd);
    uint64_t each = t->bytes / t->count, fit = p->tile / each;
    if (!rc) random_model_elements(&s->random, t, 0, fit < t->count ? fit : t->count, p->data);
    return rc;
}

/* Tensors begin at different places, so that experts and layers differ. */
static size_t place_of(const struct value_pool *p, const char *name)
{
    size_t lines = p->mapped > whole_pages(p->largest->bytes) ? p->tile / 64 : 1;
    uint64_t h = 0xcbf29ce484222325u; // FNV-1a
    for (; *name; name++) h = (h ^ (uint8_t)*name) * 0x100000001b3u;
    return (size_t)(h % lines) * 64;
}

static int make_pools(struct synthetic *s, const char *name, struct error *err)
{
    for (size_t i = 0; i < s->random.count; i++) {
        const struct random_tensor *t = &s->random.tensors[i];
        struct value_pool *p = pool_of(s, t);
        if (!p) return error_set(err, -E2BIG, "%s: more than %u kinds of random tensors", name, MAX_POOLS);
        if (!p->largest || t->bytes > p->largest->bytes) p->largest = t;
    }
    for (uint32_t i = 0; i < s->pools; i++) {
        int rc = fill_pool(s, &s->pool[i]);
        if (rc)
            return error_set(err, rc, "%s: no memory for random weights as large as %s: %s", name,
                             s->pool[i].largest->name, strerror(-rc));
    }
    return 0;
}

static int make_checkpoint(struct synthetic *s, struct checkpoint **out, const char *name, struct error *err)
{
    static const enum dtype dtypes[] = {[RANDOM_FP8] = DTYPE_F8_E4M3,
                                        [RANDOM_SCALE] = DTYPE_F32,
                                        [RANDOM_BF16] = DTYPE_BF16,
                                        [RANDOM_F32] = DTYPE_F32};
    static const char *const dtype_names[] = {
        [RANDOM_FP8] = "F8_E4M3", [RANDOM_SCALE] = "F32", [RANDOM_BF16] = "BF16", [RANDOM_F32] = "F32"};
    struct tensor *tensors = calloc(s->random.count, sizeof *tensors);
    if (!tensors) return error_set(err, -ENOMEM, "%s: no memory for %zu tensors", name, s->random.count);
    for (size_t i = 0; i < s->random.count; i++) {
        const struct random_tensor *t = &s->random.tensors[i];
        const struct value_pool *p = pool_of(s, t);
        tensors[i] = (struct tensor){.name = t->name,
                                     .dtype = dtypes[t->kind],
                                     .dims = t->dims,
                                     .shape = {t->shape[0], t->shape[1]},
                                     .data = p->data + place_of(p, t->name),
                                     .bytes = t->bytes,
                                     .file_offset = i,
                                     .dtype_name = dtype_names[t->kind]};
    }
    int rc = checkpoint_of(out, name, tensors, s->random.count, err);
    if (rc) free(tensors);
    return rc;
}

int synthetic_open(struct model *out, const struct model_config *c, struct synthetic_format format,
                   const char *name, struct error *err)
{
    *out = (struct model){.config = *c};
    snprintf(out->dir, sizeof out->dir, "%s", name);
    struct synthetic *s = calloc(1, sizeof *s);
    if (!s) return error_set(err, -ENOMEM, "%s: no memory", name);
    s->random = (struct random_model){.config = c, .seed = 1, .fp8 = format.fp8, .ue8m0 = format.ue8m0};
    int rc = random_model_list(&s->random);
    if (rc) error_set(err, rc, "%s: no memory for the list of tensors", name);
    if (!rc) rc = make_pools(s, name, err);
    if (!rc) rc = make_checkpoint(s, &out->checkpoint, name, err);
    s->random.config = NULL; // the caller's
    if (rc)
        synthetic_close(s);
    else
        out->synthetic = s;
    return rc;
}

void synthetic_close(struct synthetic *s)
{
    if (!s) return;
    for (uint32_t i = 0; i < s->pools; i++)
        if (s->pool[i].data) munmap(s->pool[i].data, s->pool[i].mapped);
    random_model_free(&s->random);
    free(s);
}
