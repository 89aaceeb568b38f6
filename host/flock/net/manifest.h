/* manifest.h: the host's memory of what it has sent: hash of every weight unit, by where its bytes lie.
 *
 * A key is a hash over the tensor's file, size, time and place and the part that was cut out, so that a
 * restarted daemon can tell what a duck holds without reading the checkpoint again. A file that is missing,
 * damaged or of another version (that is said) is an empty manifest: weights are then sent again, nothing
 * worse. manifest_get(), manifest_put() and manifest_write() may be called by several threads at once. */
#ifndef DUCKD_HOST_FLOCK_NET_MANIFEST_H
#define DUCKD_HOST_FLOCK_NET_MANIFEST_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host/util/error.h"

struct manifest_entry {
    uint64_t key, hash; // key 0: empty
};
struct manifest {
    struct manifest_entry *entry; // (capacity) open addressing; capacity is a power of two
    size_t capacity, used;
    _Atomic bool changed;
    pthread_mutex_t mutex; // all zero: free
    pthread_mutex_t file;  // held while it is written
};

void manifest_read(struct manifest *m, const char *path);
int manifest_write(struct manifest *m, const char *path, struct error *err);
void manifest_free(struct manifest *m);

uint64_t manifest_get(struct manifest *m, uint64_t key); // 0: unknown
int manifest_put(struct manifest *m, uint64_t key, uint64_t hash);

#endif
