/* config.c: the flock's JSON file -> net_config. Unknown keys are refused by name. */
#include "host/flock/net/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "duck/wire.h"
#include "host/model/json.h"

#define MOST_DUCKS 256

int net_parse_address(const char *text, uint32_t *address)
{
    unsigned a, b, c, d;
    int end = -1;
    if (sscanf(text, "%3u.%3u.%3u.%3u%n", &a, &b, &c, &d, &end) != 4 || end < 0 || text[end]) return -EINVAL;
    if (a > 255 || b > 255 || c > 255 || d > 255) return -EINVAL;
    *address = a << 24 | b << 16 | c << 8 | d;
    return 0;
}

void net_show_address(uint32_t a, char out[16])
{
    snprintf(out, 16, "%u.%u.%u.%u", a >> 24, a >> 16 & 255, a >> 8 & 255, a & 255);
}

struct net_mac_text net_show_mac(const uint8_t m[6])
{
    struct net_mac_text t;
    snprintf(t.s, sizeof t.s, "%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5]);
    return t;
}

/* "10.21.1.1", with `separator` and a number behind it if there is one. */
static int parse_address_and(const char *text, char separator, uint32_t *address, uint32_t *number,
                             uint32_t most)
{
    char head[16];
    const char *at = strchr(text, separator);
    size_t n = at ? (size_t)(at - text) : strlen(text);
    if (n >= sizeof head) return -EINVAL;
    memcpy(head, text, n);
    head[n] = 0;
    if (at) {
        char *end;
        unsigned long v = strtoul(at + 1, &end, 10);
        if (at[1] < '0' || at[1] > '9' || *end || v > most) return -EINVAL;
        *number = (uint32_t)v;
    }
    return net_parse_address(head, address);
}

static int parse_mac(const char *text, uint8_t mac[6])
{
    unsigned v[6];
    int end = -1;
    if (sscanf(text, "%2x:%2x:%2x:%2x:%2x:%2x%n", v, v + 1, v + 2, v + 3, v + 4, v + 5, &end) != 6 ||
        end < 0 || text[end])
        return -EINVAL;
    for (int i = 0; i < 6; i++) mac[i] = (uint8_t)v[i];
    return 0;
}

/* ---- members ---- */

static int read_uint(const cJSON *o, const char *key, uint64_t least, uint64_t most, uint32_t *out,
                     const char *where, struct error *err)
{
    const cJSON *item = json_get(o, key);
    uint64_t v;
    if (!item) return 0; // the default stays
    if (!json_uint(item, &v) || v < least || v > most) {
        return error_set(err, -EINVAL, "%s: %s is %s, it must be a whole number %llu .. %llu", where, key,
                         json_show(item).s, (unsigned long long)least, (unsigned long long)most);
    }
    *out = (uint32_t)v;
    return 0;
}

static int read_text(const cJSON *o, const char *key, char *out, size_t size, const char *where,
                     struct error *err)
{
    const cJSON *item = json_get(o, key);
    if (!item) return 0;
    if (!cJSON_IsString(item) || !*item->valuestring || strlen(item->valuestring) >= size) {
        return error_set(err, -EINVAL, "%s: %s is %s, it must be a text of 1 .. %zu bytes", where, key,
                         json_show(item).s, size - 1);
    }
    strcpy(out, item->valuestring);
    return 0;
}

static int read_bool(const cJSON *o, const char *key, bool *out, const char *where, struct error *err)
{
    const cJSON *item = json_get(o, key);
    if (!item) return 0;
    if (!cJSON_IsBool(item))
        return error_set(err, -EINVAL, "%s: %s is %s, it must be true or false", where, key,
                         json_show(item).s);
    *out = cJSON_IsTrue(item);
    return 0;
}

/* An address with something behind it; `form` says in messages how it looks. */
static int read_address(const cJSON *o, const char *key, char separator, uint32_t *address, uint32_t *number,
                        uint32_t most, const char *form, const char *where, struct error *err)
{
    const cJSON *item = json_get(o, key);
    if (!item) return 0;
    if (cJSON_IsString(item) && parse_address_and(item->valuestring, separator, address, number, most) == 0)
        return 0;
    return error_set(err, -EINVAL, "%s: %s is %s, it must look like \"%s\"", where, key, json_show(item).s,
                     form);
}

/* ---- ducks and ports ---- */

static int read_match(struct net_match *m, const cJSON *item, uint32_t port, const char *where,
                      struct error *err)
{
    static const char *const known[] = {"name", "weight", "memory_gb", "address", "mac", NULL};
    *m = (struct net_match){.port = port};
    if (!cJSON_IsObject(item))
        return error_set(err, -EINVAL, "%s is %s, it must be an object", where, json_show(item).s);
    uint32_t udp = WIRE_DUCK_PORT;
    int rc = json_check_keys(item, known, where, err);
    if (!rc) rc = read_address(item, "address", ':', &m->address, &udp, 65535, "10.21.1.101", where, err);
    m->udp = (uint16_t)udp;
    const cJSON *mac = json_get(item, "mac");
    if (!rc && mac) {
        m->has_mac = true;
        if (!cJSON_IsString(mac) || parse_mac(mac->valuestring, m->mac)) {
            return error_set(err, -EINVAL, "%s: mac is %s, it must look like \"02:00:00:00:01:05\"", where,
                             json_show(mac).s);
        }
    }
    const cJSON *name = json_get(item, "name");
    if (!rc && name && cJSON_IsString(name) && !m->address && !m->has_mac) {
        m->has_name = true; // nothing else says which duck is meant
        snprintf(m->name, sizeof m->name, "%s", name->valuestring);
    }
    return rc;
}

static int read_device(struct net_port_config *p, const cJSON *item, uint32_t i, const char *where,
                       struct error *err)
{
    int rc = read_text(item, "device", p->device, sizeof p->device, where, err);
    if (!rc) rc = read_text(item, "pci", p->pci, sizeof p->pci, where, err);
    p->lcore = 2 * i + 2;
    if (!rc) rc = read_uint(item, "lcore", 0, 1023, &p->lcore, where, err);
    if (!rc) rc = read_bool(item, "tap", &p->exception_tap, where, err);
    if (!rc && !*p->device == !*p->pci)
        return error_set(err, -EINVAL, "%s needs either \"device\" (a DPDK virtual device) or \"pci\"",
                         where);
    return rc;
}

static int read_port(struct net_port_config *p, const cJSON *item, uint32_t i, bool dpdk, const char *where,
                     struct error *err)
{
    static const char *const known_udp[] = {"address", "broadcast", "ducks", NULL};
    static const char *const known_dpdk[] = {"address", "device", "pci", "lcore", "tap", "ducks", NULL};
    if (!cJSON_IsObject(item))
        return error_set(err, -EINVAL, "%s is %s, it must be an object", where, json_show(item).s);
    int rc = json_check_keys(item, dpdk ? known_dpdk : known_udp, where, err);
    p->prefix = 24;
    if (!rc) rc = read_address(item, "address", '/', &p->address, &p->prefix, 30, "10.21.1.1/24", where, err);
    if (!rc && !p->address)
        return error_set(err, -EINVAL, "%s: address is missing: this host's own on the port", where);
    uint32_t none = 0;
    if (!rc) rc = read_address(item, "broadcast", ' ', &p->broadcast, &none, 0, "10.21.1.255", where, err);
    if (rc || !dpdk) return rc;
    p->broadcast = p->address | (p->prefix ? (uint32_t)((1ull << (32 - p->prefix)) - 1) : 0xffffffffu);
    return read_device(p, item, i, where, err);
}

static int read_port_ducks(struct net_config *c, const cJSON *item, uint32_t port, bool dpdk,
                           const char *where, struct error *err)
{
    const cJSON *list = json_get(item, "ducks"), *duck;
    int count = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    if (count < 1 || c->ducks + (uint32_t)count > MOST_DUCKS) {
        return error_set(err, -EINVAL, "%s: ducks must be a list of ducks, 1 .. %d in the whole flock", where,
                         MOST_DUCKS);
    }
    struct net_match *more = realloc(c->match, (c->ducks + (size_t)count) * sizeof *more);
    if (!more) return error_set(err, -ENOMEM, "no memory for %d ducks", count);
    c->match = more;
    int rc = 0;
    cJSON_ArrayForEach(duck, list)
    {
        char at[200];
        snprintf(at, sizeof at, "%s: duck %u", where, c->ducks);
        struct net_match *m = &c->match[c->ducks];
        if (!rc) rc = read_match(m, duck, port, at, err);
        if (!rc && !dpdk && !m->address && !c->port[port].broadcast) {
            rc = error_set(err, -EINVAL, "%s: address is missing (without a broadcast address on the port)",
                           at);
        }
        c->ducks++;
    }
    return rc;
}

static int read_ports(struct net_config *c, const cJSON *root, bool dpdk, const char *name, struct error *err)
{
    const cJSON *list = json_get(root, "ports"), *item;
    int count = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    if (count < 1 || count > (int)NET_MAX_PORTS) {
        return error_set(err, -EINVAL, "%s: ports must be a list of 1 .. %u ports, it has %d", name,
                         NET_MAX_PORTS, count);
    }
    int rc = 0;
    cJSON_ArrayForEach(item, list)
    {
        char where[160];
        snprintf(where, sizeof where, "%s: port %u", name, c->ports);
        if (!rc) rc = read_port(&c->port[c->ports], item, c->ports, dpdk, where, err);
        if (!rc) rc = read_port_ducks(c, item, c->ports, dpdk, where, err);
        if (!rc) c->ports++;
    }
    return rc;
}

/* The duck in this process: the last one, on a port of its own. */
static int read_inside(struct net_config *c, const cJSON *root, const char *name, struct error *err)
{
    static const char *const known[] = {"name", "weight", "memory_gb", "cores", NULL};
    const cJSON *item = json_get(root, "host"), *memory = json_get(item, "memory_gb");
    char where[160];
    snprintf(where, sizeof where, "%s: host", name);
    if (!item) return 0;
    if (!cJSON_IsObject(item))
        return error_set(err, -EINVAL, "%s is %s, it must be an object", where, json_show(item).s);
    int rc = json_check_keys(item, known, where, err);
    if (rc) return rc;
    if (!cJSON_IsNumber(memory) || !(memory->valuedouble >= 0.01 && memory->valuedouble <= 1e6))
        return error_set(err, -EINVAL, "%s: memory_gb is %s, it must be a number 0.01 .. 1000000", where,
                         json_show(memory).s);
    c->inside =
        (struct net_inside){.memory_bytes = (uint64_t)(memory->valuedouble * 1e9) / 4096 * 4096, .cores = 1};
    rc = read_uint(item, "cores", 1, NET_INSIDE_CORES, &c->inside.cores, where, err);
    if (rc) return rc;
    if (c->ducks == MOST_DUCKS)
        return error_set(err, -EINVAL, "%s: a flock has at most %d ducks", where, MOST_DUCKS);
    struct net_match *more = realloc(c->match, (c->ducks + (size_t)1) * sizeof *more);
    if (!more) return error_set(err, -ENOMEM, "no memory for a duck");
    c->match = more;
    c->match[c->ducks++] = (struct net_match){.port = c->ports, .udp = WIRE_DUCK_PORT};
    c->port[c->ports++].address = 0x7f000001;
    return 0;
}

/* ---- key ---- */

static int parse_key(const char *text, struct siphash_key *key)
{
    uint8_t bytes[16];
    for (int i = 0; i < 16; i++) {
        unsigned v;
        int end = -1;
        if (sscanf(text + 2 * i, "%2x%n", &v, &end) != 1 || end != 2) return -EINVAL;
        bytes[i] = (uint8_t)v;
    }
    for (text += 32; *text; text++)
        if (*text != '\n' && *text != '\r' && *text != ' ') return -EINVAL;
    *key = siphash_key(bytes);
    return 0;
}

/* A path in the flock's file lies beside that file, wherever duckd was started; *out stays where none is
 * given. */
static int read_path(const cJSON *root, const char *key, char *out, size_t size, const char *name,
                     struct error *err)
{
    char path[512];
    const char *slash = strrchr(name, '/');
    int rc = read_text(root, key, out, size, name, err);
    if (rc || !json_get(root, key) || *out == '/' || !slash) return rc;
    int n = snprintf(path, sizeof path, "%.*s/%s", (int)(slash - name), name, out);
    if (n < 0 || (size_t)n >= sizeof path || (size_t)n >= size)
        return error_set(err, -ENAMETOOLONG, "%s: %s %s has %d bytes with the file's folder, it can have %zu",
                         name, key, out, n, size - 1);
    memcpy(out, path, (size_t)n + 1);
    return 0;
}

static int read_key(struct net_config *c, const cJSON *root, const char *name, struct error *err)
{
    char path[256] = "", text[80] = "";
    int rc = read_path(root, "key_file", path, sizeof path, name, err);
    if (rc || !*path) {
        c->key = siphash_key((const uint8_t[16]){0});
        return rc;
    }
    FILE *f = fopen(path, "re");
    if (!f) return error_set(err, -errno, "%s: key_file %s: %s", name, path, strerror(errno));
    struct stat st;
    bool open_to_others = fstat(fileno(f), &st) == 0 && (st.st_mode & 077) != 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    fclose(f);
    if (open_to_others)
        return error_set(err, -EACCES, "%s: key_file %s can be read by others: chmod 600 it", name, path);
    if (n < 32 || parse_key(text, &c->key))
        return error_set(err, -EINVAL, "%s: key_file %s must hold 32 hexadecimal digits", name, path);
    snprintf(c->key_text, sizeof c->key_text, "%.32s", text);
    return 0;
}

/* ---- all of it ---- */

static void find_state(char *out, size_t size)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (state && *state) {
        snprintf(out, size, "%s/duckd", state);
    } else if (home && *home) {
        snprintf(out, size, "%s/.local/state/duckd", home);
    } else {
        snprintf(out, size, "/var/lib/duckd");
    }
}

/* What ducks get and was built with this duckd lies beside it, or for tests one folder above; empty: nowhere.
 */
static void find_beside(const char *file, char *out, size_t size)
{
    static const char *const places[] = {"duck/", "../duck/"};
    char self[400];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    for (size_t i = 0; n > 0 && i < sizeof places / sizeof places[0]; i++) {
        self[n] = 0;
        snprintf(out, size, "%.*s/%s%s", (int)(strrchr(self, '/') - self), self, places[i], file);
        if (access(out, R_OK) == 0) return;
    }
    *out = 0;
}

static int read_state(struct net_config *c, const cJSON *root, const char *name, struct error *err)
{
    char dir[400];
    find_state(dir, sizeof dir);
    int rc = read_path(root, "state_dir", dir, sizeof dir, name, err);
    if (rc) return rc;
    snprintf(c->manifest, sizeof c->manifest, "%s/weights.manifest", dir);
    snprintf(c->plans, sizeof c->plans, "%s/plan", dir);
    snprintf(c->places, sizeof c->places, "%s/places", dir);
    snprintf(c->boot_dir, sizeof c->boot_dir, "%s/boot", dir);
    return 0;
}

static int read_times(struct net_config *c, const cJSON *root, const char *name, struct error *err)
{
    c->find_ms = 10000;
    c->dead_ms = 4000;
    c->lease_ms = 5000;
    c->gap_us = 500;
    int rc = read_uint(root, "find_ms", 100, 3600000, &c->find_ms, name, err);
    if (!rc) rc = read_uint(root, "dead_ms", 500, 600000, &c->dead_ms, name, err);
    if (!rc) rc = read_uint(root, "lease_ms", 2000, 600000, &c->lease_ms, name, err);
    if (!rc) rc = read_uint(root, "gap_us", 10, 1000000, &c->gap_us, name, err);
    return rc;
}

static int read_all(struct net_config *c, const cJSON *root, bool dpdk, const char *name, struct error *err)
{
    static const char *const known[] = {"transport", "key_file",    "state_dir", "program",    "ports",
                                        "find_ms",   "dead_ms",     "lease_ms",  "gap_us",     "payload",
                                        "host_port", "step_tokens", "poll",      "huge_pages", "memory_mb",
                                        "about",     "boot",        "host",      "may_miss",   NULL};
    uint32_t host_udp = dpdk ? WIRE_HOST_PORT : 0;
    c->payload = WIRE_PAYLOAD;
    c->step_tokens = 32;
    c->memory_mb = 256;
    int rc = json_check_keys(root, known, name, err);
    if (!rc) rc = read_key(c, root, name, err);
    if (!rc) rc = read_state(c, root, name, err);
    if (!rc) rc = read_times(c, root, name, err);
    find_beside("fp9_kernels.elf", c->program, sizeof c->program);
    find_beside("BOOTX64.EFI", c->boot_image, sizeof c->boot_image);
    if (!rc && dpdk) rc = read_bool(root, "boot", &c->boot, name, err);
    c->program_named = json_get(root, "program") != NULL;
    if (!rc) rc = read_path(root, "program", c->program, sizeof c->program, name, err);
    if (!rc) rc = read_uint(root, "may_miss", 0, MOST_DUCKS, &c->may_miss, name, err);
    if (!rc) rc = read_uint(root, "payload", 512, WIRE_PAYLOAD_JUMBO, &c->payload, name, err);
    if (!rc) rc = read_uint(root, "host_port", 1, 65535, &host_udp, name, err);
    if (!rc) rc = read_uint(root, "step_tokens", 1, 4096, &c->step_tokens, name, err);
    if (!rc) rc = read_bool(root, "poll", &c->poll, name, err);
    if (!rc) rc = read_bool(root, "huge_pages", &c->huge_pages, name, err);
    if (!rc) rc = read_uint(root, "memory_mb", 64, 65536, &c->memory_mb, name, err);
    c->host_udp = (uint16_t)host_udp;
    if (!rc && c->boot && !*c->key_text)
        rc = error_set(err, -EINVAL, "%s: boot needs a key_file: ducks without a key answer nobody", name);
    if (!rc) rc = read_ports(c, root, dpdk, name, err);
    for (uint32_t i = 0; c->boot && i < c->ports; i++) c->port[i].exception_tap = true;
    c->wires = c->ports;
    if (!rc) rc = read_inside(c, root, name, err);
    return rc ? rc : net_config_check(c, dpdk, name, err);
}

int net_config_read(struct net_config *out, const cJSON *root, bool dpdk, const char *name, struct error *err)
{
    *out = (struct net_config){0};
    int rc = read_all(out, root, dpdk, name, err);
    if (rc) net_config_free(out);
    return rc;
}

void net_config_free(struct net_config *c)
{
    free(c->match);
    *c = (struct net_config){0};
}
