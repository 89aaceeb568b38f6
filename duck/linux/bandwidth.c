/* bandwidth.c: every thread reads its own buffer again and again for the same time. */
#include "duck/linux/bandwidth.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "duck/linux/platform_linux.h"

enum { BYTES = 64 << 20, READ_MS = 100, CORES = 64 };

struct reader {
    pthread_t thread;
    uint64_t *words; // BYTES
    uint64_t bytes, sum;
};

static _Atomic uint32_t ready, go, over;

static void *read_on(void *arg)
{
    struct reader *r = arg;
    enum { PIECE = 1 << 20 };
    memset(r->words, 1, BYTES); // its pages come from where its core is
    atomic_fetch_add(&ready, 1);
    while (!atomic_load(&go)) nanosleep(&(struct timespec){0, 100000}, NULL);
    for (size_t at = 0; !atomic_load_explicit(&over, memory_order_relaxed); at = (at + PIECE) % BYTES) {
        const uint64_t *w = r->words + at / 8;
        uint64_t sum[8] = {0}; // enough at once for the compiler's vectors
        for (size_t i = 0; i < PIECE / 8; i += 8)
            for (size_t k = 0; k < 8; k++) sum[k] += w[i + k];
        for (size_t k = 0; k < 8; k++) r->sum += sum[k];
        r->bytes += PIECE;
    }
    return NULL;
}

uint64_t bandwidth_measure(uint32_t cores)
{
    static struct reader reader[CORES];
    uint32_t n = cores < CORES ? cores : CORES, started = 0;
    for (uint32_t i = 0; i < n; i++) {
        reader[i] = (struct reader){.words = aligned_alloc(4096, BYTES)};
        if (!reader[i].words) n = i; // fewer, rather than none
    }
    atomic_store(&go, 0);
    for (; started < n; started++)
        if (pthread_create(&reader[started].thread, NULL, read_on, &reader[started])) break;
    while (atomic_load(&ready) < started) nanosleep(&(struct timespec){0, 1000000}, NULL);
    atomic_store(&go, 1);
    const uint64_t start = linux_clock_ns();
    nanosleep(&(struct timespec){0, READ_MS * 1000000L}, NULL);
    atomic_store(&over, 1);
    const double took = (double)(linux_clock_ns() - start) * 1e-9;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < started; i++) {
        pthread_join(reader[i].thread, NULL);
        bytes += reader[i].bytes;
    }
    for (uint32_t i = 0; i < n; i++) free(reader[i].words);
    return (uint64_t)((double)bytes / took);
}
