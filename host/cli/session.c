/* session.c: options -> model, tokenizer, engine. */
#include "host/cli/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "host/cli/input.h"
#include "host/model/json.h"
#include "host/model/synthetic.h"
#include "host/util/clock.h"
#include "host/util/log.h"

static int read_sampling(struct session *s, struct error *err)
{
    const struct options *o = s->options;
    s->sampling = (struct sampling){
        .temperature = (float)o->temperature,
        .top_p = (float)o->top_p,
        .min_p = (float)o->min_p,
        .top_k = (int32_t)o->top_k,
        .frequency_penalty = (float)o->frequency_penalty,
        .presence_penalty = (float)o->presence_penalty,
        .repetition_penalty = (float)o->repetition_penalty,
        .seed = o->seed,
        .bias = o->bias,
        .bias_count = o->bias_count,
    };
    for (size_t i = 0; i < o->bias_count; i++) {
        if ((uint32_t)o->bias[i].id >= s->config.vocab_size) {
            return error_set(err, -EINVAL, "--logit-bias names token %d, the model's vocabulary has %u",
                             o->bias[i].id, s->config.vocab_size);
        }
    }
    if (o->temperature > 0 && !o->seed_given) {
        uint32_t seed; // 32 bits are easier to type again
        if (getrandom(&seed, sizeof seed, 0) != sizeof seed) {
            return error_set(err, -errno, "no random seed to be had: %s; give one with --seed",
                             strerror(errno));
        }
        s->sampling.seed = seed;
        log_notice("seed %" PRIu32 " (--seed %" PRIu32 " gives the same answer again)", seed, seed);
    }
    return 0;
}

/* Checkpoints that call tools in different ways share one architecture; their chat templates tell them apart.
 */
static int read_tool_format(struct session *s, struct error *err)
{
    char path[4200];
    cJSON *root = NULL;
    snprintf(path, sizeof path, "%s/tokenizer_config.json", s->dir);
    int rc = json_read(&root, path, 16u << 20, err);
    if (rc && rc != -ENOENT) return rc;
    const cJSON *chat_template = root ? json_get(root, "chat_template") : NULL;
    bool text = chat_template && cJSON_IsString(chat_template);
    s->chat.tools = chat_tool_format_of(text ? chat_template->valuestring : NULL);
    cJSON_Delete(root);
    return 0;
}

static int open_tokenizer(struct session *s, enum session_text text, struct error *err)
{
    char path[4200];
    struct stat st;
    s->think = s->end_think = -1;
    if (text == SESSION_IDS) return 0;
    snprintf(path, sizeof path, "%s/tokenizer.json", s->dir);
    if (text == SESSION_TEXT_IF_ANY && stat(path, &st) != 0) {
        if (s->options->stop.count) {
            return error_set(err, -ENOENT, "--stop needs a tokenizer, but there is no %s", path);
        }
        log_notice("%s has no tokenizer.json: tokens come without text", s->dir);
        return 0;
    }
    int rc = tokenizer_open(&s->tokenizer, s->dir, err);
    if (rc) return rc;
    s->think = tokenizer_added(s->tokenizer, "<think>");
    s->end_think = tokenizer_added(s->tokenizer, "</think>");
    if (text != SESSION_CHAT) return 0;
    rc = chat_encoding_init(&s->chat, s->tokenizer, s->config.bos_id, s->config.eos_id[0], err);
    return rc ? rc : read_tool_format(s, err);
}

static int choose_mtp(struct session *s, struct error *err)
{
    int mtp = s->options->mtp;
    s->mtp = mtp < 0 ? s->config.mtp_layers > 0 : mtp == 1;
    if (mtp != 1 || s->config.mtp_layers > 0) return 0;
    return error_set(err, -EINVAL, "--mtp 1: %s has no MTP layer", s->dir);
}

int session_prepare(struct session *s, const struct options *o, enum session_text text, struct error *err)
{
    *s = (struct session){.options = o};
    if (o->model) {
        snprintf(s->dir, sizeof s->dir, "%s", o->model);
    } else {
        input_find_shared("models/duckling", s->dir);
    }
    if (text == SESSION_TOKENIZER) return open_tokenizer(s, text, err);
    int rc = model_config_read(&s->config, s->dir, err);
    if (!rc) rc = choose_mtp(s, err);
    if (!rc) rc = open_tokenizer(s, text, err);
    if (!rc) rc = read_sampling(s, err);
    if (rc) session_close(s);
    return rc;
}

int session_prepare_synthetic(struct session *s, const struct options *o, struct error *err)
{
    *s = (struct session){.options = o, .synthetic = true, .think = -1, .end_think = -1};
    snprintf(s->dir, sizeof s->dir, "%s", o->synthetic);
    struct synthetic_format format;
    int rc = synthetic_config_read(&s->config, &format, s->dir, err);
    if (!rc) rc = choose_mtp(s, err);
    return rc ? rc : read_sampling(s, err);
}

int session_load(struct session *s, struct error *err)
{
    static const char *const backends[] = {"auto", "cpu", "cuda"};
    static const enum wire_dtype wires[] = {WIRE_F32, WIRE_BF16, WIRE_FP8};
    static const enum kv_dtype kvs[] = {KV_F32, KV_BF16, KV_FP8};
    static const enum shared_experts shared[] = {SHARED_AUTO, SHARED_BACKEND, SHARED_FLOCK};
    const struct options *o = s->options;
    const struct synthetic_options synthetic = {s->dir, (uint32_t)o->synthetic_layers,
                                                (uint32_t)o->synthetic_experts};
    struct engine_options e = {
        .synthetic = s->synthetic ? &synthetic : NULL,
        .model_dir = s->dir,
        .flock = o->flock ? o->flock : "local",
        .backend = backends[o->backend],
        .threads = (unsigned)o->threads,
        .mtp = s->mtp,
        .mtp_always = o->drafts == 1,
        .wire_activation = wires[o->wire_activation],
        .wire_result = wires[o->wire_result],
        .expert_format = (enum fp9_format)o->expert_format,
        .kv_dtype = o->kv_dtype < 0 ? KV_F32 : kvs[o->kv_dtype],
        .kv_dtype_set = o->kv_dtype >= 0,
        .gpu_shared = shared[o->gpu_shared],
        .lanes = s->lanes,
        .prefix_cache_bytes = s->kv_cache_bytes,
        .kv_dir = s->kv_dir,
        .kv_dir_bytes = s->kv_dir_bytes,
    };
    uint64_t start = clock_ns();
    int rc = engine_open(&s->engine, &e, err);
    if (rc) return rc;
    uint32_t ducks = flock_ducks(engine_flock(s->engine));
    log_detail("model loaded in %.2f s, %u duck%s", (double)(clock_ns() - start) / 1e9, ducks,
               ducks == 1 ? "" : "s");
    return 0;
}

void session_close(struct session *s)
{
    if (s->engine) engine_close(s->engine);
    if (s->tokenizer) tokenizer_close(s->tokenizer);
    s->engine = NULL;
    s->tokenizer = NULL;
}

int session_check_length(const struct session *s, size_t count, const char *what, struct error *err)
{
    if (count == 0) return error_set(err, -EINVAL, "%s has no tokens", what);
    if (count > s->config.max_positions) {
        return error_set(err, -E2BIG, "%s has %zu tokens, %s holds %u positions", what, count, s->dir,
                         s->config.max_positions);
    }
    return 0;
}
