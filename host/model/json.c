/* json.c: see json.h. The text is copied behind a NUL before it is parsed: released versions of cJSON read
 * one byte beyond the end of some malformed inputs. */
#include "host/model/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/util/json_depth.h"

#define PATH_SHOWN 160
#define FEW_KEYS 16 // up to here comparing all pairs is cheaper than sorting

const char *json_path_tail(const char *path)
{
    size_t n = strlen(path);
    return n > PATH_SHOWN ? path + n - PATH_SHOWN : path;
}

/* cJSON's own limit of nesting (1000) is generous; ours keeps every recursion over the tree shallow. */
static int check_text(const char *text, size_t length, const char *name, struct error *err)
{
    const char *nul = memchr(text, 0, length), *deep = json_too_deep(text, length, JSON_MAX_DEPTH);
    if (deep && (!nul || deep < nul))
        return error_set(err, -EINVAL, "%s: JSON nested %d deep at byte %zu, allowed: %d", name,
                         JSON_MAX_DEPTH + 1, (size_t)(deep - text), JSON_MAX_DEPTH);
    if (nul)
        return error_set(err, -EINVAL, "%s: NUL byte at byte %zu of the JSON text", name,
                         (size_t)(nul - text));
    return 0;
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The key that occurs twice, or NULL. */
static const char *duplicate_key(const cJSON *object, size_t count, const char **keys)
{
    size_t n = 0;
    for (const cJSON *i = object->child; i && n < count; i = i->next) keys[n++] = i->string;
    qsort(keys, n, sizeof *keys, compare_keys);
    for (size_t i = 1; i < n; i++)
        if (strcmp(keys[i - 1], keys[i]) == 0) return keys[i];
    return NULL;
}

static int check_duplicates(const cJSON *item, const char *name, struct error *err)
{
    size_t count = 0;
    for (const cJSON *i = item->child; i; i = i->next) {
        count++;
        if (!i->child) continue;
        int rc = check_duplicates(i, name, err);
        if (rc) return rc;
    }
    if (!cJSON_IsObject(item) || count < 2) return 0;
    const char *few[FEW_KEYS];
    const char **keys = count <= FEW_KEYS ? few : malloc(count * sizeof *keys);
    if (!keys) return error_set(err, -ENOMEM, "%s: no memory for %zu keys", name, count);
    const char *twice = duplicate_key(item, count, keys);
    int rc = 0;
    if (twice)
        rc =
            error_set(err, -EINVAL, "%s: key %s occurs twice in one object", name, json_show_string(twice).s);
    if (keys != few) free(keys);
    return rc;
}

int json_parse(cJSON **out, const char *text, size_t length, const char *name, struct error *err)
{
    *out = NULL;
    name = json_path_tail(name);
    int rc = check_text(text, length, name, err);
    if (rc) return rc;
    char *copy = malloc(length + 1);
    if (!copy) return error_set(err, -ENOMEM, "%s: no memory for %zu bytes of JSON", name, length);
    memcpy(copy, text, length);
    copy[length] = '\0';

    const char *end = copy;
    cJSON *root = cJSON_ParseWithLengthOpts(copy, length + 1, &end, 0);
    size_t at = end ? (size_t)(end - copy) : 0;
    if (!root) {
        rc = error_set(err, -EINVAL, "%s: not valid JSON at byte %zu of %zu", name, at < length ? at : length,
                       length);
    } else {
        at += strspn(copy + at, " \t\r\n");
        if (at < length)
            rc = error_set(err, -EINVAL, "%s: JSON value ends before byte %zu, but %zu bytes follow", name,
                           at, length - at);
        else
            rc = check_duplicates(root, name, err);
    }
    free(copy);
    if (rc)
        cJSON_Delete(root);
    else
        *out = root;
    return rc;
}

static int read_all(int fd, char *buffer, size_t bytes)
{
    for (size_t got = 0; got < bytes;) {
        ssize_t n = read(fd, buffer + got, bytes - got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -errno;
        if (n == 0) return -EIO; // shrank while we read
        got += (size_t)n;
    }
    return 0;
}

int json_read(cJSON **out, const char *path, size_t max_bytes, struct error *err)
{
    *out = NULL;
    const char *name = json_path_tail(path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a FIFO is refused, not waited for
    struct stat st;
    // A link into nowhere is not "no file": callers that can do without one must not pass over it.
    if (fd < 0 && errno == ENOENT && lstat(path, &st) == 0)
        return error_set(err, -EINVAL, "%s: a link to a file that is not there", name);
    if (fd < 0) return error_set(err, -errno, "%s: cannot open: %s", name, strerror(errno));
    char *text = NULL;
    int rc = 0;
    if (fstat(fd, &st) < 0) {
        rc = error_set(err, -errno, "%s: %s", name, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        rc = error_set(err, -EINVAL, "%s: not a regular file", name);
    } else if ((uint64_t)st.st_size > max_bytes) {
        rc = error_set(err, -EINVAL, "%s: %lld bytes, allowed: %zu", name, (long long)st.st_size, max_bytes);
    } else if (!(text = malloc((size_t)st.st_size + 1))) {
        rc = error_set(err, -ENOMEM, "%s: no memory for %lld bytes", name, (long long)st.st_size);
    } else if ((rc = read_all(fd, text, (size_t)st.st_size)) < 0) {
        rc = error_set(err, rc, "%s: reading failed: %s", name, strerror(-rc));
    } else {
        rc = json_parse(out, text, (size_t)st.st_size, path, err);
    }
    free(text);
    close(fd);
    return rc;
}

const cJSON *json_get(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNull(item) ? NULL : item;
}

int json_check_keys(const cJSON *object, const char *const *known, const char *where, struct error *err)
{
    const cJSON *member;
    cJSON_ArrayForEach(member, object)
    {
        const char *const *k = known;
        while (*k && strcmp(*k, member->string) != 0) k++;
        if (!*k) return error_set(err, -EINVAL, "%s: unknown key '%.60s'", where, member->string);
    }
    return 0;
}

bool json_uint(const cJSON *item, uint64_t *out)
{
    if (!cJSON_IsNumber(item)) return false;
    double d = item->valuedouble;
    if (!(d >= 0 && d <= 0x1p53)) return false;
    *out = (uint64_t)d;
    return (double)*out == d;
}

struct json_text json_show_string(const char *text)
{
    struct json_text t;
    snprintf(t.s, sizeof t.s, "\"%.*s\"", (int)sizeof t.s - 3, text);
    for (char *p = t.s; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = '?';
    return t;
}

struct json_text json_show(const cJSON *item)
{
    if (cJSON_IsString(item)) return json_show_string(item->valuestring);
    struct json_text t;
    if (cJSON_IsNumber(item)) {
        snprintf(t.s, sizeof t.s, "%.17g", item->valuedouble);
        return t;
    }
    snprintf(t.s, sizeof t.s, "%s",
             !item                 ? "missing"
             : cJSON_IsTrue(item)  ? "true"
             : cJSON_IsFalse(item) ? "false"
             : cJSON_IsNull(item)  ? "null"
             : cJSON_IsArray(item) ? "an array"
                                   : "an object");
    return t;
}
