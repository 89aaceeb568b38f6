/* virtio_net.c: virtio-net over PCI (virtio 1.2), modern interface only, two split queues, no offloads. */
#include <string.h>

#include "duck/nic/nic.h"
#include "duck/nic/virtio_regs.h"

enum { RX = 0, TX = 1, HEADER = sizeof(struct virtio_net_header), RESET_NS = 100000000 };

struct place { // of a register block
    uint32_t bar, offset, bytes;
};

struct queue {
    struct virtq_descriptor *descriptor; // (size)
    struct virtq_available *available;
    struct virtq_used *used;
    uint8_t *buffer; // (size, NIC_BUFFER)
    uint32_t size;
    uint16_t offered, taken; // indices as the device counts them: modulo 2^16
    uint32_t notify;         // offset of the doorbell
    uint32_t free;           // TX: descriptors that the device does not have
    uint16_t free_id[NIC_RING];
};

static struct {
    struct nic_device d;
    struct place common, notify, device;
    uint32_t notify_multiplier;
    uint64_t features;
    struct queue q[2];
    uint32_t lent; // received frames that the caller holds: given back with the next recv()
    uint16_t lent_id[NIC_BATCH];
    struct nic_stats stats;
} the;

static uint64_t get(const struct place *p, uint32_t offset, uint32_t bytes)
{
    return the.d.read(the.d.self, p->bar, p->offset + offset, bytes);
}

static void set(const struct place *p, uint32_t offset, uint32_t bytes, uint64_t value)
{
    the.d.write(the.d.self, p->bar, p->offset + offset, bytes, value);
}

static uint32_t config(uint32_t offset, uint32_t bytes)
{
    return the.d.config(the.d.self, offset, bytes);
}

/* 4.1.4: where the register blocks are. */
static int find_blocks(const char **why)
{
    enum { MOST = 48 }; // capabilities that fit; a loop ends
    *why = "no capability list";
    if (!(config(PCI_STATUS, 2) & PCI_STATUS_CAPABILITIES)) return -1;
    uint32_t at = config(PCI_CAPABILITIES, 1) & 0xfc;
    for (int i = 0; at && i < MOST; i++, at = config(at + 1, 1) & 0xfc) {
        if (config(at, 1) != PCI_CAPABILITY_VENDOR) continue;
        struct place p = {config(at + CAP_BAR, 1), config(at + CAP_OFFSET, 4), config(at + CAP_LENGTH, 4)};
        uint32_t type = config(at + CAP_TYPE, 1);
        if (p.bar > 5) continue;
        if (type == CAP_COMMON && !the.common.bytes) the.common = p;
        if (type == CAP_DEVICE && !the.device.bytes) the.device = p;
        if (type == CAP_NOTIFY && !the.notify.bytes) {
            the.notify = p;
            the.notify_multiplier = config(at + CAP_NOTIFY_MULTIPLIER, 4);
        }
    }
    *why = "no virtio 1.0 registers: a legacy device";
    return the.common.bytes && the.device.bytes && the.notify.bytes ? 0 : -1;
}

/* 3.1.1: reset and negotiation. */
static int negotiate(const char **why)
{
    uint64_t start = the.d.now(the.d.self), offered = 0;
    set(&the.common, COMMON_STATUS, 1, 0);
    *why = "reset does not end";
    while (get(&the.common, COMMON_STATUS, 1) != 0)
        if (the.d.now(the.d.self) - start > RESET_NS) return -1;
    set(&the.common, COMMON_STATUS, 1, STATUS_ACKNOWLEDGE);
    set(&the.common, COMMON_STATUS, 1, STATUS_ACKNOWLEDGE | STATUS_DRIVER);
    for (uint32_t half = 0; half < 2; half++) {
        set(&the.common, COMMON_DEVICE_FEATURE_SELECT, 4, half);
        offered |= get(&the.common, COMMON_DEVICE_FEATURE, 4) << 32 * half;
    }
    the.features = offered & ((uint64_t)1 << FEATURE_MAC | (uint64_t)1 << FEATURE_STATUS |
                              (uint64_t)1 << FEATURE_VERSION_1);
    for (uint32_t half = 0; half < 2; half++) {
        set(&the.common, COMMON_DRIVER_FEATURE_SELECT, 4, half);
        set(&the.common, COMMON_DRIVER_FEATURE, 4, the.features >> 32 * half & 0xffffffff);
    }
    *why = "device without virtio 1.0 or without a MAC address";
    if (!(the.features >> FEATURE_VERSION_1 & 1) || !(the.features >> FEATURE_MAC & 1)) return -1;
    set(&the.common, COMMON_STATUS, 1, STATUS_ACKNOWLEDGE | STATUS_DRIVER | STATUS_FEATURES_OK);
    *why = "features refused";
    return get(&the.common, COMMON_STATUS, 1) & STATUS_FEATURES_OK ? 0 : -1;
}

/* Where a queue lies in memory, for the device. */
struct queue_addresses {
    uint64_t descriptors, available, used;
};

/* A queue of up to NIC_RING descriptors, each with a buffer of its own for ever. */
static int make_queue(uint32_t number, struct queue_addresses *at, const char **why)
{
    struct queue *q = &the.q[number];
    uint64_t buffers;
    set(&the.common, COMMON_QUEUE_SELECT, 2, number);
    uint32_t size = (uint32_t)get(&the.common, COMMON_QUEUE_SIZE, 2);
    if (size > NIC_RING) size = NIC_RING;
    *why = "a queue is missing";
    if (size == 0) return -1;
    *q = (struct queue){.size = size};
    q->descriptor = the.d.memory(the.d.self, size * sizeof *q->descriptor, &at->descriptors);
    q->available = the.d.memory(the.d.self, sizeof *q->available + size * 2, &at->available);
    q->used = the.d.memory(the.d.self, sizeof *q->used + size * sizeof(struct virtq_used_element), &at->used);
    q->buffer = the.d.memory(the.d.self, (size_t)size * NIC_BUFFER, &buffers);
    *why = "no memory for rings";
    if (!q->descriptor || !q->available || !q->used || !q->buffer) return -1;
    for (uint32_t i = 0; i < size; i++) {
        q->descriptor[i].address = buffers + (uint64_t)i * NIC_BUFFER;
        q->descriptor[i].length = NIC_BUFFER;
        q->descriptor[i].flags = number == RX ? DESCRIPTOR_DEVICE_WRITES : 0;
        q->available->ring[i] = (uint16_t)i;
        q->free_id[q->free++] = (uint16_t)i;
    }
    q->available->flags = AVAILABLE_NO_INTERRUPT;
    return 0;
}

/* 4.1.5.1.3. */
static void enable_queue(uint32_t number, const struct queue_addresses *at)
{
    struct queue *q = &the.q[number];
    set(&the.common, COMMON_QUEUE_SELECT, 2, number);
    set(&the.common, COMMON_QUEUE_SIZE, 2, q->size);
    set(&the.common, COMMON_QUEUE_DESCRIPTORS, 8, at->descriptors);
    set(&the.common, COMMON_QUEUE_DRIVER, 8, at->available);
    set(&the.common, COMMON_QUEUE_DEVICE, 8, at->used);
    q->notify = (uint32_t)get(&the.common, COMMON_QUEUE_NOTIFY_OFFSET, 2) * the.notify_multiplier;
    set(&the.common, COMMON_QUEUE_ENABLE, 2, 1);
}

/* 2.7.13: makes what was written visible, then one doorbell. */
static void publish(struct queue *q, uint32_t number)
{
    nic_barrier();
    __atomic_store_n(&q->available->index, q->offered, __ATOMIC_RELEASE);
    nic_barrier();
    set(&the.notify, q->notify, 2, number);
}

static void give_back(uint16_t id)
{
    struct queue *q = &the.q[RX];
    q->available->ring[q->offered++ % q->size] = id;
}

static uint32_t virtio_recv(void *self, struct frame *out, uint32_t max)
{
    (void)self;
    struct queue *q = &the.q[RX];
    uint16_t before = q->offered;
    uint32_t n = 0;
    for (uint32_t i = 0; i < the.lent; i++) give_back(the.lent_id[i]); // reclaim
    the.lent = 0;
    if (max > NIC_BATCH) max = NIC_BATCH;
    while (n < max && q->taken != __atomic_load_n(&q->used->index, __ATOMIC_ACQUIRE)) {
        struct virtq_used_element e = q->used->ring[q->taken++ % q->size];
        if (e.id >= q->size) { // a device that lies about ids has no frame for us
            the.stats.errors++;
            continue;
        }
        if (e.length < HEADER + NIC_FRAME_MIN || e.length > HEADER + NIC_FRAME_MAX) {
            the.stats.errors++;
            give_back((uint16_t)e.id);
            continue;
        }
        out[n++] = (struct frame){q->buffer + (size_t)e.id * NIC_BUFFER + HEADER, e.length - HEADER};
        the.lent_id[the.lent++] = (uint16_t)e.id;
    }
    if (q->offered != before) publish(q, RX);
    the.stats.in += n;
    return n;
}

static void reclaim_sent(struct queue *q)
{
    while (q->taken != __atomic_load_n(&q->used->index, __ATOMIC_ACQUIRE)) {
        uint32_t id = q->used->ring[q->taken++ % q->size].id;
        if (id < q->size && q->free < q->size)
            q->free_id[q->free++] = (uint16_t)id;
        else
            the.stats.errors++;
    }
}

static uint32_t virtio_send(void *self, const struct frame *f, uint32_t count)
{
    (void)self;
    struct queue *q = &the.q[TX];
    uint16_t before = q->offered;
    uint32_t n = 0;
    reclaim_sent(q);
    for (; n < count && (q->free || f[n].bytes > NIC_FRAME_MAX); n++) { // queue
        if (f[n].bytes > NIC_FRAME_MAX) {
            the.stats.errors++;
            continue;
        }
        uint16_t id = q->free_id[--q->free];
        uint8_t *buffer = q->buffer + (size_t)id * NIC_BUFFER;
        memset(buffer, 0, HEADER);
        memcpy(buffer + HEADER, f[n].data, f[n].bytes);
        q->descriptor[id].length = HEADER + f[n].bytes;
        q->available->ring[q->offered++ % q->size] = id;
        the.stats.out++;
    }
    if (q->offered != before) publish(q, TX);
    return n;
}

/* 5.1.4.2: without the status field the link is always up. A virtual link has no speed of its own. */
static uint32_t virtio_mbps(void *self)
{
    enum { VIRTUAL_MBPS = 10000 };
    (void)self;
    if (!(the.features >> FEATURE_STATUS & 1)) return VIRTUAL_MBPS;
    return get(&the.device, NET_STATUS, 2) & NET_STATUS_LINK_UP ? VIRTUAL_MBPS : 0;
}

static void virtio_stats(void *self, struct nic_stats *out)
{
    (void)self;
    *out = the.stats;
}

static int virtio_open(struct nic *out, const struct nic_device *d, const char **why)
{
    memset(&the, 0, sizeof the);
    the.d = *d;
    struct queue_addresses rx, tx;
    if (find_blocks(why) || negotiate(why) || make_queue(RX, &rx, why) || make_queue(TX, &tx, why)) return -1;
    the.d.allow_dma(the.d.self);
    enable_queue(RX, &rx);
    enable_queue(TX, &tx);
    set(&the.common, COMMON_STATUS, 1,
        STATUS_ACKNOWLEDGE | STATUS_DRIVER | STATUS_FEATURES_OK | STATUS_DRIVER_OK);
    *why = "the device asks for a reset";
    if (get(&the.common, COMMON_STATUS, 1) & STATUS_NEEDS_RESET) return -1;
    the.q[RX].offered = (uint16_t)the.q[RX].size;
    publish(&the.q[RX], RX);
    *out = (struct nic){.mtu = NIC_MTU,
                        .recv = virtio_recv,
                        .send = virtio_send,
                        .link_mbps = virtio_mbps,
                        .stats = virtio_stats};
    for (uint32_t i = 0; i < 6; i++) out->mac[i] = (uint8_t)get(&the.device, NET_MAC + i, 1);
    return 0;
}

const struct nic_driver virtio_net_driver = {
    "virtio-net", VIRTIO_VENDOR, {VIRTIO_NET_MODERN, VIRTIO_NET_TRANSITIONAL, 0}, virtio_open};
