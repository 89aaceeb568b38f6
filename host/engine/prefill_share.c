/* prefill_share.c: see prefill_share.h. The figures are of tests/web/fairness_test.mjs. */
#include "host/engine/prefill_share.h"

#define LEAST_ROWS 16u      // fewer would read all weights for next to nothing
#define FIRST_ROWS 64u      // before anything is measured
#define PATIENCE_NS 250e6   // a reader does not notice
#define MOST_ADDED_NS 400e6 // by prompts, however long decoding takes

void prefill_share_begin(struct prefill_share *s, bool adaptive, uint32_t chunk)
{
    *s = (struct prefill_share){.adaptive = adaptive, .chunk = chunk, .rows = FIRST_ROWS};
}

uint32_t prefill_share_rows(const struct prefill_share *s, uint32_t decoding)
{
    if (!s->adaptive) return decoding ? s->chunk : UINT32_MAX;
    if (!decoding) return 2 * s->chunk; // two to overlap; more would only make the next one wait
    if (s->decode_ns <= 0) return 0;    // one round without prompts, to know what decoding takes
    uint32_t rows = (uint32_t)s->rows;
    return rows < s->chunk ? rows : s->chunk;
}

uint32_t prefill_share_cut(const struct prefill_share *s, uint32_t left, uint32_t room)
{
    uint32_t rows = left < s->chunk ? left : s->chunk;
    if (rows <= room) return rows;
    return s->adaptive ? room : 0;
}

void prefill_share_measured(struct prefill_share *s, uint32_t decoding, uint32_t rows, uint64_t spent_ns)
{
    double spent = (double)spent_ns;
    if (!decoding) return;
    if (rows == 0) {
        double each = spent / decoding;
        s->decode_ns = s->decode_ns > 0 ? 0.8 * s->decode_ns + 0.2 * each : each;
        return;
    }
    double decode = s->decode_ns * decoding,
           most = decode + (decode < MOST_ADDED_NS ? decode : MOST_ADDED_NS);
    if (most < PATIENCE_NS) most = PATIENCE_NS;
    if (spent > most)
        s->rows = 0.7 * s->rows > LEAST_ROWS ? 0.7 * s->rows : LEAST_ROWS;
    else if (spent < 0.7 * most && rows + 1 >= s->rows) // that few were enough says nothing
        s->rows = 1.3 * s->rows < s->chunk ? 1.3 * s->rows : s->chunk;
}
