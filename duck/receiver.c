/* receiver.c: putting an object together from chunks that come in any order, some twice, some never. */
#include "duck/duck_internal.h"

#include <string.h>

int duck__receiver_begin(struct receiver *r, const struct wire_put *put, uint32_t chunk)
{
    if (put->total == 0 || put->total > r->room) return 0;
    r->state = RECEIVER_PARTIAL;
    r->kind = put->kind;
    r->object = put->object;
    r->total = put->total;
    r->hash = put->hash;
    r->chunk = chunk;
    r->chunks = wire_fragments(put->total, chunk);
    r->have = r->cumulative = r->since_ack = 0;
    memset(r->bitmap, 0, (r->chunks + 7) / 8);
    return 1;
}

enum receiver_chunk duck__receiver_chunk(struct receiver *r, const struct wire_put *put, const uint8_t *bytes,
                                         uint32_t count)
{
    uint32_t i = put->offset / r->chunk;
    if (put->total != r->total || put->offset % r->chunk || i >= r->chunks ||
        count != (i + 1 < r->chunks ? r->chunk : r->total - put->offset))
        return CHUNK_BAD;
    if (r->state != RECEIVER_PARTIAL || wire_bit(r->bitmap, i)) return CHUNK_DUPLICATE;
    memcpy(r->data + put->offset, bytes, count);
    wire_set_bit(r->bitmap, i);
    r->have++;
    while (r->cumulative < r->chunks && wire_bit(r->bitmap, r->cumulative)) r->cumulative++;
    if (r->have == r->chunks) r->state = RECEIVER_COMPLETE;
    return CHUNK_NEW;
}

void duck__receiver_report(const struct receiver *r, struct wire_put_ack *ack)
{
    ack->kind = r->kind;
    ack->object = r->object;
    ack->status = r->state == RECEIVER_PARTIAL ? WIRE_PUT_PARTIAL : WIRE_PUT_RECEIVED;
    ack->hash = r->hash;
    ack->cumulative = r->cumulative == r->chunks ? r->total : r->cumulative * r->chunk;
    for (uint32_t i = 0; i < 8 * WIRE_SACK_BYTES; i++) {
        uint32_t chunk = r->cumulative + 1 + i;
        if (chunk < r->chunks && wire_bit(r->bitmap, chunk)) wire_set_bit(ack->bitmap, i);
    }
}
