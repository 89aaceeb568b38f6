/* kv_store.h: KV of sequences in files, so that conversations outlive the process.
 *
 * A directory of files, one per text, within a budget of bytes; what is no conversation goes first (unless
 * conversations fill most of the budget), of these the least recently used. A file is
 * written beside its name and renamed, and believed only if version, identity (model and everything that
 * shapes its KV) and hashes are right: another is refused with one line and left alone. One process at a time
 * uses a directory. Engine thread only; writing happens on a thread of the store's own, one file at a time.
 */
#ifndef DUCKD_HOST_ENGINE_KV_STORE_H
#define DUCKD_HOST_ENGINE_KV_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "host/engine/sequence.h"

#define KV_STORE_VERSION 2u
#define KV_STORE_MIN 16u // positions that are worth a file

struct kv_store_options {
    const char *dir; // made if it is missing
    uint64_t budget_bytes;
    struct backend *backend;
    uint64_t identity;
};

struct kv_store;
int kv_store_open(struct kv_store **out, const struct kv_store_options *o, struct error *err);
void kv_store_close(struct kv_store *s); // what is being written is finished

/* How many tokens of ids[count] the best file has positions for, and how many positions that file holds. */
uint32_t kv_store_find(struct kv_store *s, const int32_t *ids, uint32_t count, uint32_t *positions);
/* Opens *out with all that the best file holds. -ENOMEM, -EBUSY: no room for it now. Otherwise negative, said
 * in one line: it turned out to be damaged. */
int kv_store_load(struct kv_store *s, const int32_t *ids, uint32_t count, struct sequence *out,
                  bool *conversation);
/* Copies the sequence's positions and has them written. Unless it may wait, nothing is done while another
 * file is being written. */
void kv_store_save(struct kv_store *s, const struct sequence *q, bool conversation, bool may_wait);

/* A file is being written, or was until just now: a quarter of the time is what writing may take. */
bool kv_store_rests(struct kv_store *s);

#endif
