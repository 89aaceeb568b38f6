/* spec.c: reading a flock specification. Whatever is not understood is refused by name: a mistyped key that
 * is quietly ignored costs an evening. */
#include "host/flock/spec.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "host/flock/transport.h"
#include "host/model/json.h"
#include "host/util/cpus.h"
#include "host/util/numa.h"

#define SPEC_MAX_BYTES (1u << 20)

static const struct transport_ops *const transports[] = {&transport_local, &transport_udp, &transport_dpdk};
#define TRANSPORTS (sizeof transports / sizeof *transports)

static int allocate(struct flock_spec *s, uint32_t ducks, struct error *err)
{
    s->duck = calloc(ducks, sizeof *s->duck);
    if (!s->duck) return error_set(err, -ENOMEM, "no memory for a flock of %u ducks", ducks);
    s->ducks = ducks;
    for (uint32_t i = 0; i < ducks; i++) {
        snprintf(s->duck[i].name, sizeof s->duck[i].name, "%s-%u", s->transport->name, i);
        s->duck[i].plan = (struct plan_duck){.weight = 1, .memory_bytes = UINT64_MAX};
    }
    return 0;
}

/* One for each NUMA node, whose threads have it in their own memory. A duck's tasks keep all threads busy,
 * and more ducks only add vectors to sum. */
static int ducks_of_machine(uint32_t *ducks, struct error *err)
{
    struct numa numa;
    uint8_t allowed[NUMA_MAX_CPUS];
    cpus_allowed(allowed, sizeof allowed);
    int rc = numa_read(&numa, NUMA_DIR, allowed, err);
    *ducks = numa.nodes;
    return rc;
}

static bool is_local(const char *text)
{
    return strcmp(text, "local") == 0 || strncmp(text, "local:", strlen("local:")) == 0;
}

/* Of "local" or "local:N". 0: as many as suit the machine. */
static int read_count(uint32_t *ducks, const char *text, struct error *err)
{
    *ducks = 0;
    if (strcmp(text, "local") == 0) return 0;
    const char *digits = text + strlen("local:");
    char *end;
    unsigned long n = strtoul(digits, &end, 10);
    if (*digits < '0' || *digits > '9' || *end || n == 0 || n > FLOCK_MAX_DUCKS) {
        return error_set(err, -EINVAL, "flock '%.60s': the number of local ducks must be 1 .. %u", text,
                         FLOCK_MAX_DUCKS);
    }
    *ducks = (uint32_t)n;
    return 0;
}

static int read_local(struct flock_spec *out, const char *text, struct error *err)
{
    uint32_t ducks;
    int rc = read_count(&ducks, text, err);
    if (rc == 0 && ducks == 0) rc = ducks_of_machine(&ducks, err);
    if (rc != 0) return rc;
    out->transport = &transport_local;
    return allocate(out, ducks, err);
}

static int read_number(const cJSON *duck, const char *key, double scale, double *value, const char *where,
                       struct error *err)
{
    const cJSON *item = json_get(duck, key);
    if (!item) return 0; // the default stays
    if (!cJSON_IsNumber(item) || !(item->valuedouble > 0) || item->valuedouble * scale > 1e18) {
        return error_set(err, -EINVAL, "%s: %s is %s, it must be a positive number", where, key,
                         json_show(item).s);
    }
    *value = item->valuedouble * scale;
    return 0;
}

static int read_duck(struct flock_spec *s, uint32_t i, const cJSON *item, const char *name, struct error *err)
{
    static const char *const known[] = {"name", "weight", "memory_gb", NULL};
    bool network = s->transport->network; // its own keys have been checked already
    struct spec_duck *d = &s->duck[i];
    char where[160];
    snprintf(where, sizeof where, "%s: duck %u", name, i);
    if (!cJSON_IsObject(item)) {
        return error_set(err, -EINVAL, "%s is %s, it must be an object", where, json_show(item).s);
    }
    int rc = network ? 0 : json_check_keys(item, known, where, err);
    if (rc != 0) return rc;
    const cJSON *n = json_get(item, "name");
    if (n) {
        if (!cJSON_IsString(n) || !*n->valuestring || strlen(n->valuestring) >= sizeof d->name) {
            return error_set(err, -EINVAL, "%s: name is %s, it must be a text of 1 .. %zu bytes", where,
                             json_show(n).s, sizeof d->name - 1);
        }
        for (const char *c = n->valuestring; *c; c++)
            if ((unsigned char)*c < ' ' || *c == 0x7f) // it stands in tables and in lines of a log
                return error_set(err, -EINVAL, "%s: name is %s, it has a control character", where,
                                 json_show(n).s);
        strcpy(d->name, n->valuestring);
    }
    for (uint32_t j = 0; j < i; j++) {
        if (strcmp(s->duck[j].name, d->name) != 0) continue;
        return error_set(err, -EINVAL, "%s has the name of duck %u, '%s'", where, j, d->name);
    }
    d->weighed = json_get(item, "weight") != NULL;
    rc = read_number(item, "weight", 1, &d->plan.weight, where, err);
    double memory = 0;
    if (rc == 0) rc = read_number(item, "memory_gb", 1e9, &memory, where, err);
    if (rc == 0 && memory > 0) d->plan.memory_bytes = (uint64_t)memory;
    return rc;
}

static int find_transport(struct flock_spec *s, const cJSON *root, const char *name, struct error *err)
{
    const cJSON *item = json_get(root, "transport");
    if (!cJSON_IsString(item)) {
        return error_set(err, -EINVAL, "%s: transport is %s, it must be a text such as \"local\"", name,
                         json_show(item).s);
    }
    for (size_t i = 0; i < TRANSPORTS; i++) {
        if (strcmp(transports[i]->name, item->valuestring) == 0) s->transport = transports[i];
    }
    if (s->transport) return 0;
    return error_set(err, -EINVAL, "%s: unknown transport %s; this duckd has: local, udp, dpdk", name,
                     json_show(item).s);
}

/* Ducks of all ports, one after the other. */
static int read_network(struct flock_spec *s, const cJSON *root, const char *name, struct error *err)
{
    s->net = calloc(1, sizeof *s->net);
    if (!s->net) return error_set(err, -ENOMEM, "no memory for a flock");
    bool dpdk = strcmp(s->transport->name, "dpdk") == 0;
    int rc = net_config_read(s->net, root, dpdk, name, err);
    if (rc == 0) rc = allocate(s, s->net->ducks, err);
    uint32_t i = 0;
    const cJSON *port, *duck;
    cJSON_ArrayForEach(port, json_get(root, "ports"))
    {
        cJSON_ArrayForEach(duck, json_get(port, "ducks"))
        {
            if (rc == 0) rc = read_duck(s, i++, duck, name, err);
        }
    }
    if (rc == 0 && s->net->inside.memory_bytes) {
        strcpy(s->duck[i].name, "host");
        rc = read_duck(s, i, json_get(root, "host"), name, err);
    }
    return rc;
}

static int read_root(struct flock_spec *s, const cJSON *root, const char *name, struct error *err)
{
    static const char *const known[] = {"transport", "ducks", NULL};
    if (!cJSON_IsObject(root)) return error_set(err, -EINVAL, "%s: not a JSON object", name);
    int rc = find_transport(s, root, name, err);
    if (rc == 0 && s->transport->network) return read_network(s, root, name, err);
    if (rc == 0) rc = json_check_keys(root, known, name, err);
    if (rc != 0) return rc;
    const cJSON *ducks = json_get(root, "ducks");
    int count = cJSON_IsArray(ducks) ? cJSON_GetArraySize(ducks) : 0;
    if (count < 1 || count > (int)FLOCK_MAX_DUCKS) {
        return error_set(err, -EINVAL, "%s: ducks must be a list of 1 .. %u ducks, it has %d", name,
                         FLOCK_MAX_DUCKS, count);
    }
    rc = allocate(s, (uint32_t)count, err);
    uint32_t i = 0;
    const cJSON *duck;
    cJSON_ArrayForEach(duck, ducks)
    {
        if (rc == 0) rc = read_duck(s, i++, duck, name, err);
    }
    return rc;
}

int flock_spec_parse(struct flock_spec *out, const char *json, size_t length, const char *name,
                     struct error *err)
{
    *out = (struct flock_spec){0};
    cJSON *root;
    int rc = json_parse(&root, json, length, name, err);
    if (rc != 0) return rc;
    rc = read_root(out, root, name, err);
    cJSON_Delete(root);
    if (rc != 0) flock_spec_free(out);
    return rc;
}

static int read_file(struct flock_spec *out, const char *path, struct error *err)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        return error_set(err, -errno, "flock '%.200s' is neither local, local:N nor a file: %s", path,
                         strerror(errno));
    }
    cJSON *root;
    int rc = json_read(&root, path, SPEC_MAX_BYTES, err);
    if (rc != 0) return rc;
    rc = read_root(out, root, json_path_tail(path), err);
    cJSON_Delete(root);
    return rc;
}

int flock_spec_read(struct flock_spec *out, const char *text, struct error *err)
{
    *out = (struct flock_spec){0};
    int rc = is_local(text) ? read_local(out, text, err) : read_file(out, text, err);
    if (rc != 0) flock_spec_free(out);
    return rc;
}

void flock_spec_free(struct flock_spec *s)
{
    free(s->duck);
    if (s->net) net_config_free(s->net);
    free(s->net);
    *s = (struct flock_spec){0};
}

int flock_spec_check_text(const char *text, struct error *err)
{
    uint32_t ducks;
    return is_local(text) ? read_count(&ducks, text, err) : 0;
}
