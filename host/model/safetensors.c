/* safetensors.c: see safetensors.h. All sums and products of numbers from the file are checked for overflow
 * before anything is compared with them. */
#include "host/model/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "host/model/json.h"

static const struct {
    const char *name;
    enum dtype dtype;
    uint32_t bytes;
} known_dtypes[] = {
    {"F32", DTYPE_F32, 4},   {"BF16", DTYPE_BF16, 2},       {"F16", DTYPE_F16, 2},
    {"I32", DTYPE_I32, 4},   {"F8_E4M3", DTYPE_F8_E4M3, 1}, {"I64", DTYPE_I64, 8},
    {"U8", DTYPE_U8, 1},     {"BOOL", DTYPE_OTHER, 1},      {"I8", DTYPE_OTHER, 1},
    {"I16", DTYPE_OTHER, 2}, {"U16", DTYPE_OTHER, 2},       {"U32", DTYPE_OTHER, 4},
    {"U64", DTYPE_OTHER, 8}, {"F64", DTYPE_OTHER, 8},       {"F8_E5M2", DTYPE_OTHER, 1},
    {"C64", DTYPE_OTHER, 8}, {"F8_E8M0", DTYPE_OTHER, 1},
};

/* One file being parsed. */
struct parse {
    const uint8_t *image;
    uint64_t bytes, header, data; // data: where offsets count from
    const char *name;
    struct error *err;
};

static int read_dtype(const struct parse *p, struct tensor *t, const cJSON *item, uint32_t *bytes)
{
    if (cJSON_IsString(item))
        for (size_t i = 0; i < sizeof known_dtypes / sizeof *known_dtypes; i++)
            if (strcmp(item->valuestring, known_dtypes[i].name) == 0) {
                t->dtype = known_dtypes[i].dtype;
                t->dtype_name = known_dtypes[i].name;
                *bytes = known_dtypes[i].bytes;
                return 0;
            }
    return error_set(p->err, -EINVAL, "%s: tensor %s: dtype is %s, not a known one", p->name, t->name,
                     json_show(item).s);
}

/* *size becomes the product of the dimensions and `element`. */
static int read_shape(const struct parse *p, struct tensor *t, const cJSON *item, uint32_t element,
                      uint64_t *size)
{
    const uint32_t most = sizeof t->shape / sizeof *t->shape;
    if (!cJSON_IsArray(item))
        return error_set(p->err, -EINVAL, "%s: tensor %s: shape is %s, must be an array", p->name, t->name,
                         json_show(item).s);
    *size = element;
    for (const cJSON *d = item->child; d; d = d->next) {
        if (t->dims == most)
            return error_set(p->err, -EINVAL, "%s: tensor %s: shape has more than %u dimensions", p->name,
                             t->name, most);
        if (!json_uint(d, &t->shape[t->dims]))
            return error_set(p->err, -EINVAL,
                             "%s: tensor %s: dimension %u of the shape is %s, must be an integer >= 0",
                             p->name, t->name, t->dims, json_show(d).s);
        if (__builtin_mul_overflow(*size, t->shape[t->dims], size))
            return error_set(p->err, -EINVAL,
                             "%s: tensor %s: shape times %u bytes is more than 2^64 (dimension %u is %" PRIu64
                             ")",
                             p->name, t->name, element, t->dims, t->shape[t->dims]);
        t->dims++;
    }
    return 0;
}

static int read_offsets(const struct parse *p, struct tensor *t, const cJSON *item, uint64_t size)
{
    uint64_t begin = 0, end = 0, room = p->bytes - p->data;
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2 || !json_uint(item->child, &begin) ||
        !json_uint(item->child->next, &end))
        return error_set(p->err, -EINVAL, "%s: tensor %s: data_offsets must be two integers >= 0", p->name,
                         t->name);
    if (begin > end)
        return error_set(p->err, -EINVAL,
                         "%s: tensor %s: data_offsets begin at %" PRIu64 " and end before it, at %" PRIu64,
                         p->name, t->name, begin, end);
    if (end > room)
        return error_set(p->err, -EINVAL,
                         "%s: tensor %s: data ends at byte %" PRIu64 ", but the file ends at byte %" PRIu64
                         " (truncated?)",
                         p->name, t->name, p->data + end, p->bytes);
    if (end - begin != size)
        return error_set(p->err, -EINVAL,
                         "%s: tensor %s: shape and dtype %s make %" PRIu64
                         " bytes, but data_offsets span %" PRIu64,
                         p->name, t->name, t->dtype_name, size, end - begin);
    t->bytes = size;
    t->file_offset = p->data + begin;
    t->data = p->image + t->file_offset;
    return 0;
}

/* Copies the name into the arena. Names are printed in messages of one line, so they must be printable. */
static int read_name(const struct parse *p, struct tensor *t, const char *name, char **arena)
{
    size_t n = strlen(name);
    bool printable = n > 0;
    for (size_t i = 0; i < n; i++) printable &= (unsigned char)name[i] > 0x20 && name[i] != 0x7f;
    if (n > SAFETENSORS_MAX_NAME || !printable)
        return error_set(p->err, -EINVAL,
                         "%s: tensor name %s (%zu bytes) must be 1 to %u printable characters", p->name,
                         json_show_string(name).s, n, SAFETENSORS_MAX_NAME);
    t->name = memcpy(*arena, name, n + 1);
    *arena += n + 1;
    return 0;
}

static int read_tensor(const struct parse *p, struct tensor *t, const cJSON *item, char **arena)
{
    int rc = read_name(p, t, item->string, arena);
    if (rc) return rc;
    if (!cJSON_IsObject(item))
        return error_set(p->err, -EINVAL, "%s: tensor %s: description is %s, must be an object", p->name,
                         t->name, json_show(item).s);
    uint32_t element = 0;
    uint64_t size = 0;
    if ((rc = read_dtype(p, t, json_get(item, "dtype"), &element))) return rc;
    if ((rc = read_shape(p, t, json_get(item, "shape"), element, &size))) return rc;
    return read_offsets(p, t, json_get(item, "data_offsets"), size);
}

static int compare_offsets(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    if (x->file_offset != y->file_offset) return x->file_offset < y->file_offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1; // empty ones first
    return strcmp(x->name, y->name);
}

static int check_overlap(const struct parse *p, const struct safetensors *s)
{
    const struct tensor *a = NULL; // the last one that has bytes
    for (size_t i = 0; i < s->count; i++) {
        const struct tensor *b = &s->tensors[i];
        if (b->bytes == 0) continue;
        if (a && a->file_offset + a->bytes > b->file_offset)
            return error_set(p->err, -EINVAL,
                             "%s: tensor %s overlaps %.100s: begins at byte %" PRIu64
                             ", the other ends at byte %" PRIu64,
                             p->name, b->name, a->name, b->file_offset, a->file_offset + a->bytes);
        a = b;
    }
    return 0;
}

static int read_header(struct parse *p, struct safetensors *out, const cJSON *root)
{
    if (!cJSON_IsObject(root))
        return error_set(p->err, -EINVAL, "%s: header is %s, must be an object", p->name, json_show(root).s);
    size_t count = 0, names = 0;
    for (const cJSON *i = root->child; i; i = i->next) {
        count++;
        names += strlen(i->string) + 1;
    }
    out->tensors = calloc(count + 1, sizeof *out->tensors);
    out->names = malloc(names + 1);
    if (!out->tensors || !out->names)
        return error_set(p->err, -ENOMEM, "%s: no memory for %zu tensors", p->name, count);
    char *arena = out->names;
    for (const cJSON *i = root->child; i; i = i->next) {
        if (strcmp(i->string, "__metadata__") == 0) continue;
        int rc = read_tensor(p, &out->tensors[out->count], i, &arena);
        if (rc) return rc;
        out->count++;
    }
    qsort(out->tensors, out->count, sizeof *out->tensors, compare_offsets);
    return check_overlap(p, out);
}

int safetensors_parse(struct safetensors *out, const void *image, size_t bytes, const char *name,
                      struct error *err)
{
    *out = (struct safetensors){0};
    struct parse p = {.image = image, .bytes = bytes, .name = json_path_tail(name), .err = err};
    if (bytes < 8)
        return error_set(err, -EINVAL, "%s: %zu bytes, a safetensors file has at least 8", p.name, bytes);
    for (int i = 7; i >= 0; i--) p.header = p.header << 8 | p.image[i];
    if (p.header > SAFETENSORS_MAX_HEADER)
        return error_set(err, -EINVAL,
                         "%s: header of %" PRIu64 " bytes, allowed: %u (not a safetensors file?)", p.name,
                         p.header, SAFETENSORS_MAX_HEADER);
    p.data = 8 + p.header;
    if (p.data > bytes)
        return error_set(err, -EINVAL,
                         "%s: header needs %" PRIu64 " bytes, but the file has %zu (truncated?)", p.name,
                         p.data, bytes);
    cJSON *root;
    int rc = json_parse(&root, (const char *)p.image + 8, (size_t)p.header, name, err);
    if (rc) return rc;
    rc = read_header(&p, out, root);
    cJSON_Delete(root);
    if (rc) safetensors_free(out);
    return rc;
}

void safetensors_free(struct safetensors *s)
{
    free(s->tensors);
    free(s->names);
    *s = (struct safetensors){0};
}

int safetensors_check(const void *image, size_t bytes, const char *name, struct error *err)
{
    struct safetensors s;
    int rc = safetensors_parse(&s, image, bytes, name, err);
    safetensors_free(&s);
    return rc;
}
