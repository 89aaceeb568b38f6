/* goldens.c: see goldens.h. Every array is copied out of the file, so that it is aligned. */
#include "tests/golden/goldens.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/model/json.h"

struct goldens {
    cJSON *manifest;
    struct golden *arrays;
    void **storage; // (count)
    size_t count;
};

static int read_array(struct goldens *g, const cJSON *item, FILE *file, struct error *err)
{
    struct golden *a = &g->arrays[g->count];
    a->name = item->string;
    a->count = 1;
    for (const cJSON *d = cJSON_GetObjectItem(item, "shape")->child; d; d = d->next) {
        if (a->dims == 8 || !json_uint(d, &a->shape[a->dims]))
            return error_set(err, -EINVAL, "manifest: %s: bad shape", a->name);
        a->count *= a->shape[a->dims++];
    }
    const char *dtype = cJSON_GetStringValue(cJSON_GetObjectItem(item, "dtype"));
    uint64_t offset;
    if (!dtype || (strcmp(dtype, "F32") != 0 && strcmp(dtype, "I32") != 0) || a->count > UINT32_MAX ||
        !json_uint(cJSON_GetObjectItem(item, "byte_offset"), &offset))
        return error_set(err, -EINVAL, "manifest: %s: bad description", a->name);
    void *data = g->storage[g->count] = malloc(4 * a->count + 4);
    g->count++;
    if (!data) return error_set(err, -ENOMEM, "%s: no memory for %" PRIu64 " values", a->name, a->count);
    if (fseek(file, (long)offset, SEEK_SET) != 0 || fread(data, 4, a->count, file) != a->count)
        return error_set(err, -EIO, "%s: %" PRIu64 " values at byte %" PRIu64 " are not all in the file",
                         a->name, a->count, offset);
    if (dtype[0] == 'F')
        a->f = data;
    else
        a->i = data;
    return 0;
}

static int read_arrays(struct goldens *g, const char *dir, struct error *err)
{
    const cJSON *tensors = json_get(g->manifest, "tensors");
    size_t n = (size_t)cJSON_GetArraySize(tensors);
    char path[4200];
    snprintf(path, sizeof path, "%s/goldens.safetensors", dir);
    FILE *file = fopen(path, "rb");
    if (!file) return error_set(err, -errno, "%s: %s", path, strerror(errno));
    g->arrays = calloc(n + 1, sizeof *g->arrays);
    g->storage = calloc(n + 1, sizeof *g->storage);
    if (!g->arrays || !g->storage) {
        fclose(file);
        return error_set(err, -ENOMEM, "%s: no memory", path);
    }
    int rc = 0;
    for (const cJSON *i = tensors ? tensors->child : NULL; i && !rc; i = i->next)
        rc = read_array(g, i, file, err);
    fclose(file);
    return rc;
}

int goldens_open(struct goldens **out, const char *dir, struct error *err)
{
    *out = NULL;
    struct goldens *g = calloc(1, sizeof *g);
    if (!g) return error_set(err, -ENOMEM, "%s: no memory", dir);
    char path[4200];
    snprintf(path, sizeof path, "%s/manifest.json", dir);
    int rc = json_read(&g->manifest, path, (size_t)64 << 20, err);
    if (!rc) rc = read_arrays(g, dir, err);
    if (rc)
        goldens_close(g);
    else
        *out = g;
    return rc;
}

void goldens_close(struct goldens *g)
{
    if (!g) return;
    for (size_t i = 0; i < g->count; i++) free(g->storage[i]);
    free(g->storage);
    free(g->arrays);
    cJSON_Delete(g->manifest);
    free(g);
}

const cJSON *goldens_manifest(const struct goldens *g)
{
    return g->manifest;
}

const struct golden *goldens_find(const struct goldens *g, const char *name_format, ...)
{
    char name[256];
    va_list args;
    va_start(args, name_format);
    vsnprintf(name, sizeof name, name_format, args);
    va_end(args);
    for (size_t i = 0; i < g->count; i++)
        if (strcmp(g->arrays[i].name, name) == 0) return &g->arrays[i];
    return NULL;
}
