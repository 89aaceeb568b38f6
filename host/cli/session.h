/* session.h: a model opened as the options say: what every command that computes begins with.
 *
 * Two steps, so that everything that can be wrong about a request is said before minutes of loading:
 * session_prepare() reads the model's shape and tokenizer, session_load() opens engine and flock. */
#ifndef DUCKD_HOST_CLI_SESSION_H
#define DUCKD_HOST_CLI_SESSION_H

#include "host/cli/options.h"
#include "host/engine/engine.h"
#include "host/text/chat_encoding.h"
#include "host/text/tokenizer.h"

enum session_text {
    SESSION_TOKENIZER,   // a tokenizer, and nothing else that the directory may hold
    SESSION_IDS,         // ids in, no text at all
    SESSION_TEXT_IF_ANY, // a tokenizer where the model has one
    SESSION_TEXT,        // a tokenizer
    SESSION_CHAT,        // and chat encoding
};

struct session {
    const struct options *options;
    char dir[4096];
    struct model_config config;
    struct tokenizer *tokenizer; // NULL: none
    struct chat_encoding chat;
    int32_t think, end_think; // -1: the model has none
    bool mtp;                 // load and use the MTP layer
    struct sampling sampling; // bias: points into the options
    uint32_t lanes;           // 0: the engine's default
    uint64_t kv_cache_bytes;  // 0: none
    bool synthetic;           // random weights of the options' shape
    const char *kv_dir;       // NULL: none
    uint64_t kv_dir_bytes;
    struct engine *engine; // NULL before session_load()
};

int session_prepare(struct session *s, const struct options *o, enum session_text text, struct error *err);
/* Instead: the shape of the options' --synthetic, without any text. */
int session_prepare_synthetic(struct session *s, const struct options *o, struct error *err);
int session_load(struct session *s, struct error *err);
void session_close(struct session *s);

/* How many positions a prompt of `count` tokens leaves, or an error with both numbers. */
int session_check_length(const struct session *s, size_t count, const char *what, struct error *err);

#endif
