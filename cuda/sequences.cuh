/* sequences.cuh: sequences and their KV pages, from one pool of fixed size.
 *
 * A sequence has pages for its whole capacity from the moment it is opened. A fork shares its prefix: it
 * refers to the original's full pages and takes only the others from the pool; the last page of the prefix is
 * copied, so that both may go on writing. A page that several hold is never written: a job at
 * positions inside one gets a page of its own first (sequences_own). A page goes back to the pool with its
 * last holder. Nothing is allocated on the device after sequences_open(). Calls wait for the device, but
 * never for a lane's stream. */
#ifndef DUCKD_CUDA_SEQUENCES_CUH
#define DUCKD_CUDA_SEQUENCES_CUH

#include "cuda/shape.cuh"

struct sequence {
    bool open;
    uint32_t capacity, pages;
    uint32_t *page; // (pages)
};

struct sequences {
    shape s; // with the KV's layout and base
    uint32_t layers, count, max_positions, max_pages, page_count, free_count, ring_rows;
    uint32_t *free_pages, *holders; // (page_count) holders: sequences that a page belongs to
    struct sequence *sequence;      // (count)
    uint32_t *tables;               // device: (count, max_pages)
    float *rings;                   // device: (count, ring_rows, hidden), or NULL
};

/* The other fields but s, free_pages, holders and sequence are set. */
int sequences_open(struct sequences *q, const shape &s, struct error *err);
void sequences_close(struct sequences *q);

int sequence_take(struct sequences *q, uint32_t *out, uint32_t capacity, struct error *err);
/* With the prefix [0, positions), at least one and at most both capacities, and the recent hidden states of
 * `from`. -EIO: the device failed. */
int sequence_fork(struct sequences *q, uint32_t *out, uint32_t from, uint32_t positions, uint32_t capacity,
                  struct error *err);
void sequence_give(struct sequences *q, uint32_t seq);
/* Pages of positions [first, end) of an open sequence are its own afterwards. */
int sequence_own(struct sequences *q, uint32_t seq, uint32_t first, uint32_t end, struct error *err);

/* An image is page after page, of each only its positions: [layer][position][latent, roped key], then
 * [layer][position][index key]. */
uint64_t sequence_bytes(const struct sequences *q, uint32_t positions);
int sequence_save(const struct sequences *q, uint32_t seq, uint32_t positions, void *image,
                  struct error *err);
int sequence_load(const struct sequences *q, uint32_t seq, uint32_t positions, const void *image,
                  struct error *err);

#endif
