/* input.c: files and stdin, read whole; they are small against a model. */
#include "host/cli/input.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/util/json_depth.h"

#define LARGEST_INPUT ((size_t)1 << 30) // a wrong file (a disk image, /dev/zero) must not eat the memory

const char *input_name(const char *path)
{
    return strcmp(path, "-") ? path : "stdin";
}

static int read_stream(FILE *f, const char *name, char **out, size_t *length, struct error *err)
{
    size_t size = 0, capacity = 0;
    char *text = NULL;
    do {
        if (capacity - size < 2) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            char *grown = capacity <= LARGEST_INPUT ? realloc(text, capacity) : NULL;
            if (!grown) {
                free(text);
                return error_set(err, -EFBIG, "%s: more than %zu MB cannot be read", name,
                                 LARGEST_INPUT >> 20);
            }
            text = grown;
        }
        size += fread(text + size, 1, capacity - size - 1, f);
    } while (!feof(f) && !ferror(f));
    if (ferror(f)) {
        int code = errno > 0 ? errno : EIO;
        free(text);
        return error_set(err, -code, "%s: cannot be read: %s", name, strerror(code));
    }
    text[size] = 0;
    *out = text;
    *length = size;
    return 0;
}

int input_text(const char *path, char **out, size_t *length, struct error *err)
{
    if (!strcmp(path, "-")) return read_stream(stdin, "stdin", out, length, err);
    FILE *f = fopen(path, "rb");
    if (!f) return error_set(err, -errno, "%s: cannot be opened: %s", path, strerror(errno));
    int rc = read_stream(f, path, out, length, err);
    fclose(f);
    return rc;
}

static size_t line_of(const char *text, const char *at)
{
    size_t line = 1;
    for (; text < at; text++) line += *text == '\n';
    return line;
}

int input_json(const char *path, cJSON **out, struct error *err)
{
    char *text = NULL;
    size_t length = 0;
    int rc = input_text(path, &text, &length, err);
    if (rc) return rc;
    const char *name = input_name(path), *end = NULL;
    *out = cJSON_ParseWithLengthOpts(text, length + 1, &end, true);
    if (!*out && !end) end = text;
    if (!*out && json_stopped_too_deep(text, end, CJSON_NESTING_LIMIT))
        rc = error_set(err, -EINVAL, "%s: nested deeper than %d in line %zu", name, CJSON_NESTING_LIMIT,
                       line_of(text, end));
    else if (!*out)
        rc = error_set(err, -EINVAL, "%s: not JSON, see line %zu", name, line_of(text, end));
    free(text);
    return rc;
}

int input_ids_from(const cJSON *array, const char *name, struct ids *out, struct error *err)
{
    if (!cJSON_IsArray(array)) return error_set(err, -EINVAL, "%s: not a JSON array of token ids", name);
    const cJSON *item;
    cJSON_ArrayForEach(item, array)
    {
        double x = cJSON_IsNumber(item) ? item->valuedouble : -1;
        if (x < 0 || x > INT32_MAX || x != floor(x)) {
            char *text = cJSON_PrintUnformatted(item);
            error_set(err, -EINVAL, "%s: element %zu is %.40s, not a token id", name, out->count,
                      text ? text : "?");
            cJSON_free(text);
            return -EINVAL;
        }
        if (ids_push(out, (int32_t)x)) return error_set(err, -ENOMEM, "%s: out of memory", name);
    }
    return 0;
}

int input_ids(const char *path, struct ids *out, struct error *err)
{
    cJSON *root;
    int rc = input_json(path, &root, err);
    if (rc) return rc;
    rc = input_ids_from(root, input_name(path), out, err);
    cJSON_Delete(root);
    return rc;
}

int input_id_lists(const char *path, struct ids **out, size_t *count, struct error *err)
{
    cJSON *root;
    int rc = input_json(path, &root, err);
    if (rc) return rc;
    const char *file = input_name(path);
    bool nested = cJSON_IsArray(root) && cJSON_IsArray(root->child);
    size_t lists = nested ? (size_t)cJSON_GetArraySize(root) : 1, done = 0;
    struct ids *list = calloc(lists, sizeof *list);
    if (!list) rc = error_set(err, -ENOMEM, "%s: out of memory", file);
    for (const cJSON *item = nested ? root->child : root; !rc && done < lists; item = item->next, done++) {
        char name[4200];
        snprintf(name, sizeof name, nested ? "%s: array %zu" : "%s", file, done);
        rc = input_ids_from(item, name, &list[done], err);
    }
    cJSON_Delete(root);
    if (rc) {
        for (size_t i = 0; list && i < lists; i++) ids_free(&list[i]);
        free(list);
        return rc;
    }
    *out = list;
    *count = lists;
    return 0;
}

int input_check_ids(const struct ids *ids, uint32_t vocab, const char *name, struct error *err)
{
    for (size_t i = 0; i < ids->count; i++) {
        if (ids->id[i] < 0 || (uint32_t)ids->id[i] >= vocab) {
            return error_set(err, -EINVAL, "%s: element %zu is token %d, the model's vocabulary has %u", name,
                             i, ids->id[i], vocab);
        }
    }
    return 0;
}

void input_find_shared(const char *relative, char *out)
{
    struct stat st;
    snprintf(out, 4096, "%s", relative);
    if (stat(relative, &st) == 0) return;
    char program[3500];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0) return;
    program[n] = 0;
    char *slash = strrchr(program, '/');
    if (slash) *slash = 0;
    static const char *const places[] = {"..", "../share/duckd"}; // build/duckd, bin/duckd
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        char path[4096], clean[4096];
        snprintf(path, sizeof path, "%s/%s/%s", program, places[i], relative);
        if (realpath(path, clean)) {
            memcpy(out, clean, sizeof clean);
            return;
        }
    }
}
