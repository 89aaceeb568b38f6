/* inputs.c: the table of keys, and the two ways values get into it. */
#include "host/plan/inputs.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/model/json.h"

#define AT(field) offsetof(struct forecast_inputs, field)
#define HARDWARE(field, low, high, whole, what)                                                              \
    {                                                                                                        \
#field, INPUT_HARDWARE, AT(field), low, high, {NAN, NAN }, whole, what                               \
    }
#define KEY(field, group, low, high, reference, duckd, whole, what)                                          \
    {                                                                                                        \
#field, group, AT(field), low, high, {reference, duckd }, whole, what                                \
    }
#define SWITCH(field, reference, duckd, what) KEY(field, INPUT_SCHEME, 0, 1, reference, duckd, 1, what)

/* memory_share, gpu_layer_us and flop_share of the reference scheme are the three constants fitted to its
 * case 02-prime (docs/plan.md): to its time per token, to its fast path of 3.8 ms, and to its time to first
 * token. Those of the duckd scheme: the same memory_share; the other two are design budgets, to be replaced
 * by measurements. */
const struct input_key forecast_keys[] = {
    HARDWARE(ducks, 1, 256, 1, "ducks"),
    HARDWARE(duck_memory_gib, 0.25, 4096, 0, "memory of a duck, GiB"),
    HARDWARE(duck_bandwidth_gb_s, 0.1, 10000, 0, "peak memory bandwidth of a duck, GB/s"),
    HARDWARE(duck_gflops, 1, 1e6, 0, "peak fp32 arithmetic of a duck, GFLOP/s"),
    HARDWARE(duck_link_gbit_s, 0.01, 800, 0, "link of a duck, Gbit/s"),
    HARDWARE(domains, 1, 64, 1, "broadcast domains, one host port each"),
    HARDWARE(uplink_gbit_s, 0.01, 1600, 0, "host port of a domain, Gbit/s"),
    HARDWARE(frame_bytes, 256, 9000, 1, "IP packet size, bytes"),
    HARDWARE(latency_us, 0, 10000, 0, "one way through NICs and switch, µs"),
    HARDWARE(gpu, 0, 1, 1, "1: a GPU, 0: the host's cores do its work"),
    HARDWARE(gpu_memory_gib, 0, 4096, 0, "GPU memory, GiB"),
    HARDWARE(gpu_bandwidth_gb_s, 1, 100000, 0, "GPU memory bandwidth, GB/s"),
    HARDWARE(gpu_tflops, 0.1, 100000, 0, "dense bf16 arithmetic of the GPU, TFLOP/s"),
    HARDWARE(host_memory_gib, 1, 65536, 0, "host memory, GiB"),
    HARDWARE(host_bandwidth_gb_s, 1, 10000, 0, "peak memory bandwidth of the host, GB/s"),
    HARDWARE(host_gflops, 1, 1e6, 0, "peak fp32 arithmetic of the host, GFLOP/s"),
    HARDWARE(disk_gb_s, 0.01, 1000, 0, "sequential reading from disk, GB/s"),

    KEY(memory_share, INPUT_SOFTWARE, 0.01, 1, 0.815, 0.815, 0, "of peak bandwidth that kernels reach"),
    KEY(flop_share, INPUT_SOFTWARE, 0.01, 1, 0.2335, 0.7, 0, "of peak arithmetic that prefill kernels reach"),
    KEY(gpu_layer_us, INPUT_SOFTWARE, 0, 1e5, 720, 115, 0, "GPU time of a layer beyond its bytes, µs"),
    KEY(step_gap_us, INPUT_SOFTWARE, 0, 1e5, 75, 5, 0, "a duck's pause before a step, µs"),
    KEY(prepare_us, INPUT_SOFTWARE, 0, 1e5, 4, 4, 0, "making a request, µs"),
    KEY(prefill_chunk, INPUT_SOFTWARE, 1, 65536, 256, 512, 1, "tokens of a prefill chunk"),

    SWITCH(dual_lane, 1, 1, "token and draft (or two chunks) as two lanes"),
    SWITCH(one_job, 0, 0, "token and draft as two rows of one job: what local ducks and a CPU do"),
    SWITCH(streamed, 0, 1, "results leave a duck while it computes"),
    SWITCH(back_to_back, 0, 1, "the next step reaches a duck while it computes"),
    SWITCH(blocked_prefill, 0, 1, "prefill kernels unpack weights while they multiply"),
    SWITCH(shared_on_gpu, 0, 1, "the shared expert on the GPU"),
    SWITCH(merged, 0, 1, "an expert that several rows of a step chose is read once"),
    SWITCH(merged_lanes, 0, 0, "and one that two lanes' steps chose, while both are at a duck"),
    SWITCH(host_duck, 0, 0, "host memory as one more duck"),
    SWITCH(gpu_duck, 0, 0, "what is free of GPU memory as one more duck"),
    SWITCH(copies, 0, 0, "what host and GPU hold are copies: prefill leaves it to the ducks"),
    SWITCH(mtp, 1, 1, "one draft a round"),
    SWITCH(indexer, 0, 1, "sparse attention, where the model has it"),

    KEY(acceptance, INPUT_WORK, 0, 1, 0.89, 0.89, 0, "accepted drafts / drafts"),
    KEY(prompt_tokens, INPUT_WORK, 1, 1e6, 11, 11, 1, "tokens of the prompt"),
    KEY(output_tokens, INPUT_WORK, 1, 1e6, 2037, 2037, 1, "tokens of the answer"),
    KEY(expert_bits, INPUT_WORK, 1, 32, 9, 9, 0, "bits of an expert's weight in duck memory"),
    KEY(checkpoint_bits, INPUT_WORK, 1, 32, 8, 8, 0, "bits of an expert's weight on disk and wire"),
    KEY(draft_bits, INPUT_WORK, 1, 32, 16, 16, 0, "bits of a weight of the head that drafts come from"),
    KEY(activation_bytes, INPUT_WORK, 1, 4, 2, 2, 0, "bytes of an activation value on the wire"),
    KEY(result_bytes, INPUT_WORK, 1, 4, 4, 4, 0, "bytes of a result value on the wire"),
    KEY(kv_bytes, INPUT_WORK, 1, 4, 2, 2, 0, "bytes of a cached value"),
    KEY(held_experts, INPUT_WORK, 0, 65536, 0, 0, 1, "experts of a layer that a synthetic run holds; 0: all"),
};
const size_t forecast_key_count = sizeof forecast_keys / sizeof forecast_keys[0];

double *forecast_input(struct forecast_inputs *in, const struct input_key *key)
{
    return (double *)(void *)((char *)in + key->offset);
}

static const struct input_key *find(const char *name, size_t length)
{
    for (size_t i = 0; i < forecast_key_count; i++)
        if (strlen(forecast_keys[i].name) == length && !memcmp(forecast_keys[i].name, name, length))
            return &forecast_keys[i];
    return NULL;
}

/* The names of a group, separated by spaces. */
static void list_names(enum input_group group, char *out, size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < forecast_key_count; i++)
        if (forecast_keys[i].group == group && used < size)
            used += (size_t)snprintf(out + used, size - used, "%s%s", used ? " " : "", forecast_keys[i].name);
}

static int store(struct forecast_inputs *in, const struct input_key *key, double value, const char *where,
                 struct error *err)
{
    if (!(value >= key->low && value <= key->high) || (key->whole && value != floor(value)))
        return error_set(err, -ERANGE, "%s: %s is %.10g, it can be %s%.10g to %.10g (%s)", where, key->name,
                         value, key->whole ? "a whole number " : "", key->low, key->high, key->what);
    *forecast_input(in, key) = value;
    return 0;
}

int forecast_inputs_set(struct forecast_inputs *in, const char *assignment, struct error *err)
{
    const char *equal = strchr(assignment, '=');
    if (!equal) return error_set(err, -EINVAL, "--set takes KEY=VALUE, as in ducks=16, not '%s'", assignment);
    const struct input_key *key = find(assignment, (size_t)(equal - assignment));
    if (!key)
        return error_set(
            err, -ENOENT,
            "--set: unknown key '%.*s'; plan --json prints every key, docs/plan.md says what it is",
            (int)(equal - assignment), assignment);
    char *end;
    double value = strtod(equal + 1, &end);
    if (end == equal + 1 || *end || !isfinite(value))
        return error_set(err, -EINVAL, "--set: %s takes a number, not '%s'", key->name, equal + 1);
    return store(in, key, value, "--set", err);
}

/* "kinds": [{"ducks": 8, "duck_bandwidth_gb_s": 38.4}, ...]: what a kind does not say is as for all. */
static int read_kind(struct forecast_inputs *in, struct duck_kind *kind, const cJSON *item, const char *name,
                     struct error *err)
{
    struct forecast_inputs one = *in;
    one.ducks = NAN;
    for (const cJSON *i = item->child; i; i = i->next) {
        if (!strcmp(i->string, "about")) continue;
        const struct input_key *key = find(i->string, strlen(i->string));
        bool known = key && (!strcmp(key->name, "ducks") || !strncmp(key->name, "duck_", 5));
        if (!known || !cJSON_IsNumber(i))
            return error_set(err, -EINVAL,
                             "%s: kinds: '%.40s' is %s; a kind has numbers: ducks duck_memory_gib "
                             "duck_bandwidth_gb_s duck_gflops duck_link_gbit_s",
                             name, i->string, json_show(i).s);
        int rc = store(&one, key, i->valuedouble, name, err);
        if (rc) return rc;
    }
    if (isnan(one.ducks)) return error_set(err, -EINVAL, "%s: kinds: a kind needs its number of ducks", name);
    *kind =
        (struct duck_kind){one.ducks, one.duck_memory_gib / in->duck_memory_gib,
                           one.duck_bandwidth_gb_s / in->duck_bandwidth_gb_s,
                           one.duck_gflops / in->duck_gflops, one.duck_link_gbit_s / in->duck_link_gbit_s};
    return 0;
}

static int read_kinds(struct forecast_inputs *in, const cJSON *kinds, const char *name, struct error *err)
{
    const cJSON *item;
    if (!kinds) return 0;
    if (!cJSON_IsArray(kinds)) return error_set(err, -EINVAL, "%s: kinds is not an array", name);
    cJSON_ArrayForEach(item, kinds)
    {
        if (in->kinds == FORECAST_KINDS)
            return error_set(err, -EINVAL, "%s: kinds has %d members, at most %u are possible", name,
                             cJSON_GetArraySize(kinds), FORECAST_KINDS);
        int rc = read_kind(in, &in->kind[in->kinds], item, name, err);
        if (rc) return rc;
        in->kinds++;
    }
    return 0;
}

struct duck_hardware forecast_duck(const struct forecast_inputs *in, uint32_t duck)
{
    uint32_t more = duck - (uint32_t)in->ducks;
    if (duck >= (uint32_t)in->ducks && in->host_duck > 0 && more == 0)
        return (struct duck_hardware){in->host_memory_gib, in->host_bandwidth_gb_s, in->host_gflops, INFINITY,
                                      DUCK_HOST};
    if (duck >= (uint32_t)in->ducks)
        return (struct duck_hardware){in->gpu_memory_gib, in->gpu_bandwidth_gb_s, 1e3 * in->gpu_tflops,
                                      INFINITY, DUCK_GPU};
    struct duck_kind k = {0, 1, 1, 1, 1};
    double end = 0;
    for (unsigned i = 0; i < in->kinds; i++) {
        end += in->kind[i].ducks;
        if (duck >= end) continue;
        k = in->kind[i];
        break;
    }
    return (struct duck_hardware){in->duck_memory_gib * k.memory, in->duck_bandwidth_gb_s * k.bandwidth,
                                  in->duck_gflops * k.gflops, in->duck_link_gbit_s * k.link, DUCK_NETWORK};
}

uint32_t forecast_ducks(const struct forecast_inputs *in)
{
    return (uint32_t)in->ducks + (in->host_duck > 0 ? 1 : 0) + (in->gpu_duck > 0 ? 1 : 0);
}

unsigned forecast_unbuilt(const struct forecast_inputs *in, struct forecast_unbuilt out[FORECAST_UNBUILT])
{
    const struct {
        bool supposed;
        struct forecast_unbuilt what;
    } all[] = {
        {in->gpu_duck > 0, {"gpu_duck", "no GPU computes routed experts", in->gpu_duck}},
        {in->copies > 0, {"copies", "a slice has one holder", in->copies}},
        {in->merged_lanes > 0,
         {"merged_lanes", "experts are shared by the rows of a step, not by two lanes' steps",
          in->merged_lanes}},
        {in->expert_bits != 9 && in->expert_bits != 8,
         {"expert_bits", "ducks hold fp9, 9 bits a weight, or e4m3, 8", in->expert_bits}},
        {in->expert_bits == 8 && in->checkpoint_bits != 8,
         {"expert_bits", "ducks hold 8 bits of a checkpoint of e4m3 only", in->expert_bits}},
        {in->gpu > 0 && in->draft_bits < 16,
         {"draft_bits", "only the CPU backend has a head of 4 bits", in->draft_bits}},
    };
    unsigned n = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].supposed) out[n++] = all[i].what;
    return n;
}

static int read_members(struct forecast_inputs *in, const cJSON *root, const char *name, struct error *err)
{
    if (!cJSON_IsObject(root)) return error_set(err, -EINVAL, "%s: is not a JSON object", name);
    for (const cJSON *i = root->child; i; i = i->next) {
        if (!strcmp(i->string, "about") || !strcmp(i->string, "kinds")) continue;
        const struct input_key *key = find(i->string, strlen(i->string));
        if (!key || key->group != INPUT_HARDWARE) {
            char names[400];
            list_names(INPUT_HARDWARE, names, sizeof names);
            return error_set(err, -EINVAL, "%s: unknown key '%.40s'; known: %s", name, i->string, names);
        }
        if (!cJSON_IsNumber(i))
            return error_set(err, -EINVAL, "%s: %s is %s, it must be a number", name, key->name,
                             json_show(i).s);
        int rc = store(in, key, i->valuedouble, name, err);
        if (rc) return rc;
    }
    for (size_t i = 0; i < forecast_key_count; i++)
        if (isnan(*forecast_input(in, &forecast_keys[i])))
            return error_set(err, -EINVAL, "%s: key %s is missing (%s)", name, forecast_keys[i].name,
                             forecast_keys[i].what);
    return read_kinds(in, cJSON_GetObjectItemCaseSensitive(root, "kinds"), name, err);
}

int forecast_inputs_read(struct forecast_inputs *out, enum forecast_scheme scheme, const char *path,
                         struct error *err)
{
    for (size_t i = 0; i < forecast_key_count; i++)
        *forecast_input(out, &forecast_keys[i]) = forecast_keys[i].preset[scheme];
    out->kinds = 0;
    cJSON *root;
    int rc = json_read(&root, path, (size_t)1 << 20, err);
    if (rc) return rc;
    rc = read_members(out, root, json_path_tail(path), err);
    cJSON_Delete(root);
    return rc;
}

int forecast_inputs_check(const struct forecast_inputs *in, struct error *err)
{
    if (in->domains > in->ducks)
        return error_set(err, -EINVAL, "domains is %g, but ducks is %g", in->domains, in->ducks);
    double of_kinds = 0;
    for (unsigned i = 0; i < in->kinds; i++) of_kinds += in->kind[i].ducks;
    if (of_kinds > in->ducks)
        return error_set(err, -EINVAL, "kinds has %g duck%s, but ducks is %g", of_kinds,
                         of_kinds == 1 ? "" : "s", in->ducks);
    if (in->gpu_duck > 0 && in->gpu < 1)
        return error_set(err, -EINVAL, "gpu_duck is 1 and gpu is 0: there is no GPU memory");
    if (in->host_duck > 0 && in->gpu < 1)
        return error_set(err, -EINVAL,
                         "host_duck is 1 and gpu is 0: without a GPU the host's memory serves attention; set "
                         "one of the two otherwise");
    return 0;
}
