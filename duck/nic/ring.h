/* ring.h: one ring of NIC_RING descriptors each way, as igc, rtl8125 and e1000e share it: frames that are
 * lent to the caller and armed again with its next recv(), pieces that are no frame, copies, padding,
 * reclaiming, one doorbell per batch. A driver brings the shape of its descriptors (struct ring_ops), starts
 * the device and gives struct nic its ring with ring_recv() and ring_send().
 *
 * Functions of a header: each driver has its own, so that tests can seed mistakes into them as into the
 * driver itself (tests/nic). */
#ifndef DUCK_NIC_RING_H
#define DUCK_NIC_RING_H

#include <string.h>

#include "duck/nic/nic.h"

enum ring_look { RING_EMPTY = 0, RING_THERE = 1, RING_LAST = 2, RING_BAD = 4 };

struct ring_ops {
    void (*arm)(uint32_t i);      // receive descriptor i is the device's, with its buffer, nothing else in it
    void (*armed)(uint32_t tail); // tells the device, up to `tail`; NULL: it looks at the descriptors itself
    uint32_t (*look)(uint32_t i,
                     uint32_t *bytes);         // enum ring_look of receive descriptor i, length without FCS
    void (*queue)(uint32_t i, uint32_t bytes); // a frame of so many bytes is in the buffer of descriptor i
    void (*doorbell)(uint32_t tail); // the device is to send what lies in front of descriptor `tail`
    int (*is_sent)(uint32_t i);
    uint32_t rx_bytes; // of a receive buffer
    uint32_t tx_least; // shorter frames get zeros up to here
    uint32_t tx_most;  // frames in the ring
};

struct ring {
    const struct ring_ops *ops;
    uint8_t *rx_data, *tx_data; // (NIC_RING, rx_bytes), (NIC_RING, NIC_BUFFER)
    uint64_t rx_address, tx_address;
    uint32_t rx_next;          // the descriptor that is looked at next; free running
    uint32_t lent;             // descriptors in front of rx_next whose frames the caller may hold
    uint32_t tx_next, tx_done; // free running; tx_done: sent by the device
    int inside;                // of a frame that is longer than a buffer
    struct nic_stats stats;
};

/* Memory for both rings, descriptors and buffers; receive descriptors are armed. The device is not told. */
static int ring_make(struct ring *r, const struct ring_ops *ops, const struct nic_device *d, const char **why)
{
    r->ops = ops;
    r->rx_data = d->memory(d->self, (size_t)NIC_RING * ops->rx_bytes, &r->rx_address);
    r->tx_data = d->memory(d->self, (size_t)NIC_RING * NIC_BUFFER, &r->tx_address);
    *why = "no memory for rings";
    if (!r->rx_data || !r->tx_data) return -1;
    for (uint32_t i = 0; i < NIC_RING; i++) ops->arm(i);
    nic_barrier();
    return 0;
}

/* Where the device puts frame i, and where it gets it from. */
static inline uint64_t ring_rx_address(const struct ring *r, uint32_t i)
{
    return r->rx_address + (uint64_t)i * r->ops->rx_bytes;
}

static inline uint64_t ring_tx_address(const struct ring *r, uint32_t i)
{
    return r->tx_address + (uint64_t)i * NIC_BUFFER;
}

/* Gives the descriptors of the last batch back: the tail may be the one in front of the next. */
static void ring_rearm(struct ring *r)
{
    if (!r->lent) return;
    for (; r->lent > 0; r->lent--) r->ops->arm((r->rx_next - r->lent) % NIC_RING);
    nic_barrier();
    if (r->ops->armed) r->ops->armed((r->rx_next - 1) % NIC_RING);
}

/* 1: descriptor of a whole frame. One that is spread over descriptors is too long, and counted once. */
static int ring_is_frame(struct ring *r, uint32_t look, uint32_t bytes)
{
    int inside = r->inside;
    r->inside = !(look & RING_LAST);
    if (!inside && look & RING_LAST && !(look & RING_BAD) && bytes >= NIC_FRAME_MIN && bytes <= NIC_FRAME_MAX)
        return 1;
    if (look & RING_LAST) r->stats.errors++;
    return 0;
}

static uint32_t ring_recv(void *self, struct frame *out, uint32_t max)
{
    struct ring *r = self;
    uint32_t n = 0;
    ring_rearm(r);
    if (max > NIC_BATCH) max = NIC_BATCH;
    // Frames that are dropped take descriptors too, hence the second bound: never the whole ring at once.
    while (n < max && r->lent < NIC_RING / 2) {
        uint32_t i = r->rx_next % NIC_RING, bytes = 0, look = r->ops->look(i, &bytes);
        if (look == RING_EMPTY) break;
        if (ring_is_frame(r, look, bytes))
            out[n++] = (struct frame){r->rx_data + (size_t)i * r->ops->rx_bytes, bytes};
        r->rx_next++;
        r->lent++;
    }
    r->stats.in += n;
    return n;
}

static void ring_reclaim(struct ring *r)
{
    while (r->tx_done != r->tx_next && r->ops->is_sent(r->tx_done % NIC_RING)) r->tx_done++;
}

static void ring_queue(struct ring *r, const struct frame *f)
{
    uint32_t i = r->tx_next % NIC_RING, bytes = f->bytes < r->ops->tx_least ? r->ops->tx_least : f->bytes;
    uint8_t *buffer = r->tx_data + (size_t)i * NIC_BUFFER;
    memcpy(buffer, f->data, f->bytes);
    memset(buffer + f->bytes, 0, bytes - f->bytes);
    r->ops->queue(i, bytes);
    r->tx_next++;
    r->stats.out++;
}

static uint32_t ring_send(void *self, const struct frame *f, uint32_t count)
{
    struct ring *r = self;
    uint32_t n = 0, before = r->tx_next;
    ring_reclaim(r);
    for (; n < count && (r->tx_next - r->tx_done < r->ops->tx_most || f[n].bytes > NIC_FRAME_MAX); n++) {
        if (f[n].bytes > NIC_FRAME_MAX)
            r->stats.errors++;
        else
            ring_queue(r, &f[n]);
    }
    if (r->tx_next == before) return n;
    nic_barrier();
    r->ops->doorbell(r->tx_next % NIC_RING);
    return n;
}

#endif
