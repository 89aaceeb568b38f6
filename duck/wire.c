/* wire.c: sealing and checking datagrams, keys, hashes, and the arithmetic of fragments. */
#include "duck/wire.h"

#include <string.h>

enum { TAG_AT = offsetof(struct wire_header, tag) };

static uint64_t tag_of(const uint8_t *datagram, size_t payload, const struct siphash_key *key)
{
    static const uint8_t no_tag[sizeof(uint64_t)];
    struct siphash s;
    siphash_begin(&s, key);
    siphash_words(&s, datagram, TAG_AT / 8);
    siphash_words(&s, no_tag, 1);
    return siphash_end(&s, datagram + WIRE_HEADER, payload);
}

uint32_t wire_seal(uint8_t *datagram, struct wire_header h, const struct siphash_key *key)
{
    h.magic = WIRE_MAGIC;
    h.version = WIRE_VERSION;
    if (h.fragments == 0) h.fragments = 1;
    memcpy(datagram, &h, sizeof h);
    uint64_t tag = tag_of(datagram, h.length, key);
    memcpy(datagram + TAG_AT, &tag, sizeof tag);
    return WIRE_HEADER + h.length;
}

enum wire_verdict wire_parse(const uint8_t *datagram, size_t bytes, struct wire_header *out)
{
    if (bytes < WIRE_HEADER || bytes > WIRE_DATAGRAM_MAX) return WIRE_MALFORMED;
    memcpy(out, datagram, sizeof *out);
    if (out->magic != WIRE_MAGIC || out->length != bytes - WIRE_HEADER) return WIRE_MALFORMED;
    if (out->version != WIRE_VERSION) return WIRE_OTHER_VERSION;
    if (out->type == 0 || out->type >= WIRE_TYPES || out->fragment >= out->fragments) return WIRE_MALFORMED;
    return WIRE_OK;
}

enum wire_verdict wire_check_tag(const uint8_t *datagram, const struct siphash_key *key)
{
    struct wire_header h;
    memcpy(&h, datagram, sizeof h);
    return tag_of(datagram, h.length, key) == h.tag ? WIRE_OK : WIRE_WRONG_TAG;
}

struct siphash_key wire_session_key(const struct siphash_key *flock, const uint8_t nonce[WIRE_NONCE])
{
    uint8_t text[WIRE_NONCE + 16] = {0};
    memcpy(text, nonce, WIRE_NONCE);
    static const uint8_t purpose[16] = "duckd session 0";
    memcpy(text + WIRE_NONCE, purpose, sizeof purpose);
    struct siphash_key key;
    key.k0 = siphash(flock, text, sizeof text);
    text[WIRE_NONCE + 14] = '1';
    key.k1 = siphash(flock, text, sizeof text);
    return key;
}

/* ---- hashes of objects ---- */

static const struct siphash_key object_key = {0x656a626f646b6375u, 0x3130687361682d74u};

static uint64_t not_zero(uint64_t hash)
{
    return hash ? hash : 1;
}

uint64_t wire_piece_hash(const uint8_t *piece, size_t bytes)
{
    return siphash(&object_key, piece, bytes);
}

uint64_t wire_hash_of_pieces(const uint64_t *piece_hash, size_t pieces)
{
    return not_zero(siphash(&object_key, piece_hash, pieces * sizeof *piece_hash));
}

uint64_t wire_object_hash(const uint8_t *bytes, size_t count)
{
    struct siphash s;
    siphash_begin(&s, &object_key);
    for (size_t at = 0; at < count; at += WIRE_HASH_PIECE) {
        uint64_t h = wire_piece_hash(bytes + at, count - at < WIRE_HASH_PIECE ? count - at : WIRE_HASH_PIECE);
        siphash_words(&s, &h, 1);
    }
    return not_zero(siphash_end(&s, NULL, 0));
}

uint64_t wire_root_hash(const uint64_t *unit_hash, size_t units)
{
    return wire_hash_of_pieces(unit_hash, units);
}

/* ---- fragments ---- */

enum { MOST_FRAGMENTS = 65535 };

struct wire_step_layout wire_step_layout(uint32_t hidden, uint32_t tokens, uint32_t top_k,
                                         enum wire_dtype activation, uint32_t payload)
{
    struct wire_step_layout l = {.ids = sizeof(struct wire_step)};
    uint64_t pairs = (uint64_t)tokens * top_k, limit = (uint64_t)MOST_FRAGMENTS * payload;
    if (pairs > limit || (uint64_t)tokens * hidden > limit) return l; // no overflow below
    l.weights = l.ids + 4 * pairs;
    l.scales = l.weights + 4 * pairs;
    l.x = l.scales + wire_scale_bytes(activation, tokens, hidden);
    l.bytes = l.scales + wire_packed_bytes(activation, tokens, hidden);
    if (l.bytes > limit) l.bytes = 0;
    return l;
}

struct wire_result_plan wire_result_plan(uint32_t hidden, uint32_t tokens, uint32_t subtrees,
                                         enum wire_dtype result, uint32_t payload)
{
    struct wire_result_plan p = {
        .tokens_per_fragment = 1, .subtrees = subtrees, .tokens = tokens, .hidden = hidden};
    uint32_t values = payload / (result == WIRE_F32 ? 4 : 2);
    if (values < 8 || hidden == 0 || tokens == 0) return p;
    p.rows_per_block = hidden <= values ? hidden : values / 8 * 8;
    if (p.rows_per_block == hidden) p.tokens_per_fragment = values / hidden;
    p.blocks = (hidden + p.rows_per_block - 1) / p.rows_per_block;
    p.groups = (tokens + p.tokens_per_fragment - 1) / p.tokens_per_fragment;
    uint64_t fragments = (uint64_t)p.blocks * p.groups;
    if (subtrees <= MOST_FRAGMENTS && fragments <= MOST_FRAGMENTS && fragments * subtrees <= MOST_FRAGMENTS)
        p.fragments = (uint32_t)(fragments * subtrees);
    return p;
}

struct wire_result_part wire_result_part(const struct wire_result_plan *p, uint32_t fragment)
{
    uint32_t group = fragment % p->groups, rest = fragment / p->groups;
    struct wire_result_part part = {
        .subtree = rest % p->subtrees,
        .first_token = group * p->tokens_per_fragment,
        .first_row = rest / p->subtrees * p->rows_per_block,
    };
    uint32_t tokens = p->tokens - part.first_token, rows = p->hidden - part.first_row;
    part.tokens = tokens < p->tokens_per_fragment ? tokens : p->tokens_per_fragment;
    part.rows = rows < p->rows_per_block ? rows : p->rows_per_block;
    return part;
}
