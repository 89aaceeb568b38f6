/* prefill_share.h: how many rows of prompts a round takes in while others decode.
 *
 * A round lasts until everybody's job in it is through, so prompts make those who decode wait. Where jobs may
 * be cut anywhere without changing a bit (`adaptive`), the rows follow what rounds measured: prompts may take
 * as long as decoding does, up to 0.4 s, or fill a round up to a quarter of a second. Elsewhere a prompt is
 * always cut into whole chunks. Pure bookkeeping. */
#ifndef DUCKD_HOST_ENGINE_PREFILL_SHARE_H
#define DUCKD_HOST_ENGINE_PREFILL_SHARE_H

#include <stdbool.h>
#include <stdint.h>

struct prefill_share {
    bool adaptive;
    uint32_t chunk;   // rows of the largest job
    double rows;      // for the next round in which somebody decodes
    double decode_ns; // a round without prompts, per generation that decodes; 0: not measured
};

void prefill_share_begin(struct prefill_share *s, bool adaptive, uint32_t chunk);
/* Rows of all prompts together that the next round may take. */
uint32_t prefill_share_rows(const struct prefill_share *s, uint32_t decoding);
/* Rows of a prompt of which `left` are not done, when `room` are left of the round's; 0: not in this round.
 */
uint32_t prefill_share_cut(const struct prefill_share *s, uint32_t left, uint32_t room);
/* A round took this long. */
void prefill_share_measured(struct prefill_share *s, uint32_t decoding, uint32_t rows, uint64_t spent_ns);

#endif
