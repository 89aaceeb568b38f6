/* sequences.cu: see sequences.cuh. Pages are moved by copies of strided rows: in a page every layer has
 * KV_PAGE rows, of which a text may have filled the first only. */
#include "cuda/sequences.cuh"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int sequences_open(struct sequences *q, const shape &s, struct error *err)
{
    q->s = s;
    q->free_pages = (uint32_t *)malloc(q->page_count * sizeof *q->free_pages);
    q->holders = (uint32_t *)calloc(q->page_count, sizeof *q->holders);
    q->sequence = (struct sequence *)calloc(q->count, sizeof *q->sequence);
    if (!q->free_pages || !q->holders || !q->sequence)
        return gpu_host->error_set(err, -ENOMEM, "no memory for %u pages", q->page_count);
    for (uint32_t i = 0; i < q->page_count; i++) q->free_pages[i] = q->page_count - 1 - i;
    q->free_count = q->page_count;
    return 0;
}

void sequences_close(struct sequences *q)
{
    for (uint32_t i = 0; q->sequence && i < q->count; i++) free(q->sequence[i].page);
    free(q->free_pages);
    free(q->holders);
    free(q->sequence);
}

static uint32_t take_page(struct sequences *q)
{
    const uint32_t page = q->free_pages[--q->free_count];
    q->holders[page] = 1;
    return page;
}

static void give_page(struct sequences *q, uint32_t page)
{
    if (--q->holders[page] == 0) q->free_pages[q->free_count++] = page;
}

/* Entries [first, end) of a sequence's table as the device sees it. */
static int write_table(struct sequences *q, uint32_t seq, uint32_t first, uint32_t end, struct error *err)
{
    const struct sequence *s = &q->sequence[seq];
    if (end <= first) return 0;
    GPU_TRY(cudaMemcpy(q->tables + (size_t)seq * q->max_pages + first, s->page + first,
                       (end - first) * sizeof *s->page, cudaMemcpyHostToDevice));
    return 0;
}

/* The entry of a free sequence of `capacity` positions whose first `shared` pages are those of `from`. */
static int take(struct sequences *q, uint32_t *out, const struct sequence *from, uint32_t shared,
                uint32_t capacity, struct error *err)
{
    const uint32_t pages = div_up(capacity, KV_PAGE), wanted = pages - shared;
    uint32_t i = 0;
    while (i < q->count && q->sequence[i].open) i++;
    if (i == q->count)
        return gpu_host->error_set(err, -EBUSY, "all %u sequences of the CUDA backend are in use", q->count);
    if (capacity > q->max_positions)
        return gpu_host->error_set(err, -E2BIG, "a sequence of %u positions, the model has %u", capacity,
                                   q->max_positions);
    if (wanted > q->free_count)
        return gpu_host->error_set(err, -ENOMEM,
                                   "a sequence of %u positions needs %u KV pages, %u of %u are free",
                                   capacity, wanted, q->free_count, q->page_count);
    struct sequence *s = &q->sequence[i];
    s->page = (uint32_t *)malloc((pages ? pages : 1) * sizeof *s->page);
    if (!s->page) return gpu_host->error_set(err, -ENOMEM, "no memory for %u pages", pages);
    for (uint32_t p = 0; p < shared; p++) q->holders[s->page[p] = from->page[p]]++;
    for (uint32_t p = shared; p < pages; p++) s->page[p] = take_page(q);
    s->capacity = capacity;
    s->pages = pages;
    s->open = true;
    const int rc = write_table(q, i, 0, pages, err);
    if (rc) sequence_give(q, i);
    *out = i;
    return rc;
}

int sequence_take(struct sequences *q, uint32_t *out, uint32_t capacity, struct error *err)
{
    return take(q, out, nullptr, 0, capacity, err);
}

void sequence_give(struct sequences *q, uint32_t seq)
{
    struct sequence *s = &q->sequence[seq];
    for (uint32_t p = s->pages; p-- > 0;) give_page(q, s->page[p]);
    free(s->page);
    *s = {};
}

/* ---- pages ---- */

static uint8_t *page_at(const struct sequences *q, uint32_t page)
{
    return q->s.kv.base + (size_t)page * q->s.kv.page_bytes;
}

/* The first n positions of a page of all layers, rows or index keys of `bytes` each, to or from a plain array
 * or another page (`pitch`: bytes of a layer there). */
static cudaError_t move_rows(const struct sequences *q, void *to, size_t to_pitch, const void *from,
                             size_t from_pitch, uint32_t bytes, uint32_t n)
{
    if (bytes == 0) return cudaSuccess;
    return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, (size_t)n * bytes, q->layers, cudaMemcpyDefault,
                             0);
}

static int copy_page(const struct sequences *q, uint32_t to, uint32_t from, uint32_t n, struct error *err)
{
    const kv_layout &kv = q->s.kv;
    const size_t row = (size_t)KV_PAGE * kv.row_bytes, index = (size_t)KV_PAGE * kv.index_bytes;
    GPU_TRY(move_rows(q, page_at(q, to), row, page_at(q, from), row, kv.row_bytes, n));
    GPU_TRY(move_rows(q, page_at(q, to) + kv.index_at, index, page_at(q, from) + kv.index_at, index,
                      kv.index_bytes, n));
    return 0;
}

int sequence_own(struct sequences *q, uint32_t seq, uint32_t first, uint32_t end, struct error *err)
{
    struct sequence *s = &q->sequence[seq];
    for (uint32_t p = first / KV_PAGE; p * KV_PAGE < end; p++) {
        const uint32_t shared = s->page[p];
        if (q->holders[shared] == 1) continue;
        if (q->free_count == 0)
            return gpu_host->error_set(
                err, -ENOMEM,
                "position %u lies in a KV page that other texts share, and none of the "
                "%u pages is free for a copy",
                p * KV_PAGE, q->page_count);
        s->page[p] = take_page(q);
        int rc = copy_page(q, s->page[p], shared, KV_PAGE, err);
        if (!rc) rc = gpu_check(cudaStreamSynchronize(0), err, "copy of a page");
        if (!rc) rc = write_table(q, seq, p, p + 1, err);
        give_page(q, shared);
        if (rc) return rc;
    }
    return 0;
}

/* What lies in a fork's own memory: the last page of the prefix, and hidden states. */
static int copy_own(const struct sequences *q, uint32_t to, uint32_t from, uint32_t shared, uint32_t rest,
                    struct error *err)
{
    const int rc = copy_page(q, q->sequence[to].page[shared], q->sequence[from].page[shared], rest, err);
    if (rc) return rc;
    const size_t ring = (size_t)q->ring_rows * q->s.hidden;
    if (q->rings)
        GPU_TRY(cudaMemcpyAsync(q->rings + to * ring, q->rings + from * ring, ring * sizeof(float),
                                cudaMemcpyDeviceToDevice, 0));
    GPU_TRY(cudaStreamSynchronize(0));
    return 0;
}

int sequence_fork(struct sequences *q, uint32_t *out, uint32_t from, uint32_t positions, uint32_t capacity,
                  struct error *err)
{
    // The page of the last position is copied, even if it is full: it is often written again.
    const uint32_t shared = (positions - 1) / KV_PAGE;
    int rc = take(q, out, &q->sequence[from], shared, capacity, err);
    if (rc) return rc;
    rc = copy_own(q, *out, from, shared, positions - shared * KV_PAGE, err);
    if (rc) sequence_give(q, *out);
    return rc;
}

/* ---- images ---- */

uint64_t sequence_bytes(const struct sequences *q, uint32_t positions)
{
    return (uint64_t)positions * q->layers * (q->s.kv.row_bytes + q->s.kv.index_bytes);
}

/* Calls move(page, its part of the image, rows, bytes of the image's rows) for every page. */
template <class F> static int each_page(const struct sequences *q, uint32_t seq, uint32_t positions, F move)
{
    size_t at = 0;
    for (uint32_t p = 0; p * KV_PAGE < positions; p++) {
        const uint32_t left = positions - p * KV_PAGE, n = left < KV_PAGE ? left : KV_PAGE;
        const int rc = move(page_at(q, q->sequence[seq].page[p]), at, n);
        if (rc) return rc;
        at += sequence_bytes(q, n);
    }
    return 0;
}

int sequence_save(const struct sequences *q, uint32_t seq, uint32_t positions, void *image, struct error *err)
{
    const kv_layout &kv = q->s.kv;
    const int rc = each_page(q, seq, positions, [&](uint8_t *page, size_t at, uint32_t n) {
        uint8_t *rows = (uint8_t *)image + at, *keys = rows + (size_t)n * q->layers * kv.row_bytes;
        GPU_TRY(move_rows(q, rows, (size_t)n * kv.row_bytes, page, (size_t)KV_PAGE * kv.row_bytes,
                          kv.row_bytes, n));
        GPU_TRY(move_rows(q, keys, (size_t)n * kv.index_bytes, page + kv.index_at,
                          (size_t)KV_PAGE * kv.index_bytes, kv.index_bytes, n));
        return 0;
    });
    if (rc) return rc;
    GPU_TRY(cudaStreamSynchronize(0));
    return 0;
}

int sequence_load(const struct sequences *q, uint32_t seq, uint32_t positions, const void *image,
                  struct error *err)
{
    const kv_layout &kv = q->s.kv;
    const int rc = each_page(q, seq, positions, [&](uint8_t *page, size_t at, uint32_t n) {
        const uint8_t *rows = (const uint8_t *)image + at,
                      *keys = rows + (size_t)n * q->layers * kv.row_bytes;
        GPU_TRY(move_rows(q, page, (size_t)KV_PAGE * kv.row_bytes, rows, (size_t)n * kv.row_bytes,
                          kv.row_bytes, n));
        GPU_TRY(move_rows(q, page + kv.index_at, (size_t)KV_PAGE * kv.index_bytes, keys,
                          (size_t)n * kv.index_bytes, kv.index_bytes, n));
        return 0;
    });
    if (rc) return rc;
    GPU_TRY(cudaStreamSynchronize(0));
    return 0;
}
