/* nic_models.c: models of a virtio-net device (virtio 1.2) and of an Intel 82574 (datasheet rev. 3.4).
 * Numbers of sections stand where a rule of them is checked; what has none is ours: memory that was never
 * given, features and offloads that these drivers do not use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "duck/nic/e1000e_regs.h"
#include "duck/nic/virtio_regs.h"
#include "tests/firmware/nic_models.h"

static const uint8_t model_mac[6] = {2, 0, 0, 0, 1, 5};
static void *piece[256];
static uint32_t pieces;

void *nic_model_memory(void *self, size_t bytes, uint64_t *address)
{
    (void)self;
    assert_true(pieces < 256);
    void *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    memset(p, 0, bytes);
    piece[pieces++] = p;
    *address = (uint64_t)(uintptr_t)p;
    return p;
}

void nic_models_free(void)
{
    while (pieces) free(piece[--pieces]);
}

static int dma_allowed;

static void allow_dma(void *self)
{
    (void)self;
    assert_false(dma_allowed);
    dma_allowed = 1;
}

uint64_t nic_model_now(void *self)
{
    static uint64_t ns;
    (void)self;
    return ns += 1000000;
}

void nic_model_check_sent(const uint8_t *frame, uint32_t bytes)
{
    assert_in_range(bytes, 14, 9014);
    for (uint32_t i = 0; i < bytes; i++) assert_int_equal(frame[i], (uint8_t)(frame[0] + i));
}

static uint8_t *at(uint64_t address)
{
    assert_true(dma_allowed);
    return (uint8_t *)(uintptr_t)address;
}

/* ---- virtio-net ---- */

enum { V_COMMON = 0x000, V_DEVICE = 0x100, V_NOTIFY = 0x200, V_MULTIPLIER = 4, V_BAR = 4, V_BYTES = 0x300 };

static struct {
    uint8_t config[256];
    int dead, link;
    uint32_t device_select, driver_select, queue_select;
    uint64_t driver_features;
    uint8_t status;
    struct {
        uint16_t size, enabled;
        uint64_t part[3]; // descriptors, available, used
        uint16_t seen;    // of the available ring
        uint32_t doorbells;
    } q[2];
} v;

static uint8_t *capability(uint8_t *p, uint8_t next, uint8_t type, uint32_t offset, uint32_t length)
{
    p[0] = PCI_CAPABILITY_VENDOR, p[1] = next, p[2] = 20, p[CAP_TYPE] = type, p[CAP_BAR] = V_BAR;
    memcpy(p + CAP_OFFSET, &offset, 4);
    memcpy(p + CAP_LENGTH, &length, 4);
    return p;
}

static uint32_t v_config(void *self, uint32_t offset, uint32_t bytes)
{
    (void)self;
    uint32_t value = 0;
    assert_true(offset + bytes <= sizeof v.config);
    memcpy(&value, v.config + offset, bytes);
    return value;
}

static uint64_t v_read(void *self, uint32_t bar, uint32_t offset, uint32_t bytes)
{
    static const uint64_t features = (uint64_t)1 << FEATURE_MAC | (uint64_t)1 << FEATURE_STATUS |
                                     (uint64_t)1 << FEATURE_VERSION_1 | 0x40000000 | 1;
    (void)self;
    assert_int_equal(bar, V_BAR);
    assert_true(offset + bytes <= V_BYTES && offset % bytes == 0);
    if (offset >= V_DEVICE + NET_MAC && offset < V_DEVICE + NET_MAC + 6) return model_mac[offset - V_DEVICE];
    switch (offset) {
    case V_COMMON + COMMON_DEVICE_FEATURE:
        return features >> 32 * v.device_select & 0xffffffff;
    case V_COMMON + COMMON_STATUS:
        return v.dead ? 0x55 : v.status;
    case V_COMMON + COMMON_QUEUE_SIZE:
        return v.q[v.queue_select].size;
    case V_COMMON + COMMON_QUEUE_NOTIFY_OFFSET:
        return v.queue_select + 1;
    case V_DEVICE + NET_STATUS:
        return (uint64_t)v.link;
    default:
        fail_msg("virtio: read of 0x%x", offset);
        return 0;
    }
}

static void v_status(uint8_t value)
{
    if (value == 0) { // reset
        memset(v.q, 0, sizeof v.q);
        v.q[0].size = v.q[1].size = 256;
        v.driver_features = 0;
    } else {
        assert_int_equal(value & v.status, v.status); // 2.1.1: bits are only added
    }
    if (value & STATUS_FEATURES_OK && !(v.status & STATUS_FEATURES_OK) &&
        !(v.driver_features >> FEATURE_VERSION_1 & 1))
        value = (uint8_t)(value & ~STATUS_FEATURES_OK);
    if (value == STATUS_ACKNOWLEDGE) assert_false(dma_allowed); // it was reset before
    if (value & STATUS_DRIVER_OK) assert_true(dma_allowed);
    if (value & STATUS_DRIVER_OK) assert_true(v.q[0].enabled && v.q[1].enabled); // 3.1.1
    v.status = value;
}

static void v_write_queue(uint32_t offset, uint64_t value)
{
    assert_true(v.status & STATUS_FEATURES_OK && !(v.status & STATUS_DRIVER_OK)); // 3.1.1: between these two
    assert_false(v.q[v.queue_select].enabled);                                    // 4.1.4.3.2: enabled last
    if (offset == COMMON_QUEUE_SIZE) {
        assert_true(value <= 256 && value && !(value & (value - 1))); // 4.1.4.3.2: a power of two
        v.q[v.queue_select].size = (uint16_t)value;
    } else if (offset == COMMON_QUEUE_ENABLE) {
        for (int i = 0; i < 3; i++) assert_true(v.q[v.queue_select].part[i] != 0);
        v.q[v.queue_select].enabled = 1;
    } else {
        v.q[v.queue_select].part[(offset - COMMON_QUEUE_DESCRIPTORS) / 8] = value;
    }
}

static void v_write(void *self, uint32_t bar, uint32_t offset, uint32_t bytes, uint64_t value)
{
    (void)self;
    assert_int_equal(bar, V_BAR);
    assert_true(offset + bytes <= V_BYTES && offset % bytes == 0);
    switch (offset) {
    case V_COMMON + COMMON_DEVICE_FEATURE_SELECT:
        v.device_select = (uint32_t)value;
        break;
    case V_COMMON + COMMON_DRIVER_FEATURE_SELECT:
        v.driver_select = (uint32_t)value;
        break;
    case V_COMMON + COMMON_DRIVER_FEATURE:
        assert_false(v.status & STATUS_FEATURES_OK); // 3.1.1: features are accepted before that
        v.driver_features |= value << 32 * v.driver_select;
        assert_false(v.driver_features & 0x40000001); // offered, but not understood by this driver
        break;
    case V_COMMON + COMMON_STATUS:
        v_status((uint8_t)value);
        break;
    case V_COMMON + COMMON_QUEUE_SELECT:
        v.queue_select = (uint32_t)value;
        break;
    case V_COMMON + COMMON_QUEUE_SIZE:
    case V_COMMON + COMMON_QUEUE_ENABLE:
    case V_COMMON + COMMON_QUEUE_DESCRIPTORS:
    case V_COMMON + COMMON_QUEUE_DRIVER:
    case V_COMMON + COMMON_QUEUE_DEVICE:
        v_write_queue(offset - V_COMMON, value);
        break;
    case V_NOTIFY + V_MULTIPLIER:
    case V_NOTIFY + 2 * V_MULTIPLIER:
        assert_true(v.status & STATUS_DRIVER_OK); // 3.1.1: no notification before that
        assert_int_equal(value, offset == V_NOTIFY + V_MULTIPLIER ? 0 : 1);
        v.q[value].doorbells++;
        break;
    default:
        fail_msg("virtio: write of 0x%x", offset);
    }
}

/* The next descriptor the driver has offered; NULL: none. */
static struct virtq_descriptor *v_next(uint32_t queue, uint16_t *id)
{
    struct virtq_available *a = (struct virtq_available *)(void *)at(v.q[queue].part[1]);
    if (v.q[queue].seen == a->index) return NULL;
    assert_true((uint16_t)(a->index - v.q[queue].seen) <= v.q[queue].size); // 2.7.13: no more than there are
    *id = a->ring[v.q[queue].seen++ % v.q[queue].size];
    assert_true(*id < v.q[queue].size);
    return (struct virtq_descriptor *)(void *)at(v.q[queue].part[0]) + *id;
}

static void v_use(uint32_t queue, uint16_t id, uint32_t length)
{
    struct virtq_used *u = (struct virtq_used *)(void *)at(v.q[queue].part[2]);
    u->ring[u->index % v.q[queue].size] = (struct virtq_used_element){id, length};
    u->index++;
}

static int v_arrive(const uint8_t *frame, uint32_t bytes)
{
    uint16_t id;
    struct virtq_descriptor *d = v.link ? v_next(0, &id) : NULL;
    if (!d) return 0;
    assert_int_equal(d->flags, DESCRIPTOR_DEVICE_WRITES);
    uint32_t room = d->length - (uint32_t)sizeof(struct virtio_net_header), n = bytes < room ? bytes : room;
    memset(at(d->address), 0, sizeof(struct virtio_net_header));
    memcpy(at(d->address) + sizeof(struct virtio_net_header), frame, n);
    v_use(0, id, (uint32_t)sizeof(struct virtio_net_header) + n);
    return 1;
}

/* Without a link frames are taken and lost, as QEMU does it (net.c: link_down). */
static uint32_t v_transmit(uint32_t most)
{
    uint32_t n = 0;
    uint16_t id;
    struct virtq_descriptor *d;
    for (; n < most && (d = v_next(1, &id)); n += v.link != 0) {
        struct virtio_net_header none = {0};
        assert_int_equal(d->flags, 0);
        assert_memory_equal(at(d->address), &none, sizeof none);
        nic_model_check_sent(at(d->address) + sizeof none, d->length - (uint32_t)sizeof none);
        v_use(1, id, 0);
    }
    return n;
}

static struct nic_device v_make(void)
{
    memset(&v, 0, sizeof v);
    dma_allowed = 0;
    v.link = 1;
    v.status = 7; // a boot loader left it running
    v.config[PCI_STATUS] = PCI_STATUS_CAPABILITIES;
    v.config[PCI_CAPABILITIES] = 0x40;
    uint32_t multiplier = V_MULTIPLIER;
    capability(v.config + 0x40, 0x60, CAP_COMMON, V_COMMON, 0x38);
    capability(v.config + 0x60, 0x80, CAP_DEVICE, V_DEVICE, 8);
    memcpy(capability(v.config + 0x80, 0, CAP_NOTIFY, V_NOTIFY, 0x100) + CAP_NOTIFY_MULTIPLIER, &multiplier,
           4);
    return (struct nic_device){NULL, v_config, v_read, v_write, nic_model_memory, allow_dma, nic_model_now};
}

static void v_set_link(int up)
{
    v.link = up;
}

static void v_set_dead(int dead)
{
    v.dead = dead;
}

static uint32_t v_doorbells(void)
{
    return v.q[1].doorbells;
}

const struct nic_model virtio_net_model = {&virtio_net_driver, v_make,     v_set_link, v_set_dead,
                                           v_arrive,           v_transmit, v_doorbells};

/* ---- 82574 ---- */

static struct {
    uint32_t reg[0x6000 / 4];
    int dead;
    uint32_t doorbells;
} e;

static uint64_t e_ring(uint32_t low)
{
    return (uint64_t)e.reg[low / 4 + 1] << 32 | e.reg[low / 4];
}

static uint64_t e_read(void *self, uint32_t bar, uint32_t offset, uint32_t bytes)
{
    (void)self;
    assert_true(bar == 0 && bytes == 4 && offset % 4 == 0 && offset < sizeof e.reg);
    uint32_t value = e.reg[offset / 4];
    if (offset == REG_MPC || offset == REG_CRCERRS || offset == REG_ICR) e.reg[offset / 4] = 0;
    return value;
}

static void e_reset(void)
{
    uint32_t link = e.reg[REG_STATUS / 4];
    memset(e.reg, 0, sizeof e.reg);
    e.reg[REG_STATUS / 4] = link;
    e.reg[REG_RAL0 / 4] = 0x00000002;
    e.reg[REG_RAH0 / 4] = 0x80000501;
    for (uint32_t i = 0; i < MTA_WORDS; i++) e.reg[REG_MTA / 4 + i] = 0xdead; // undefined: software clears
}

static void e_write(void *self, uint32_t bar, uint32_t offset, uint32_t bytes, uint64_t value)
{
    (void)self;
    assert_true(bar == 0 && bytes == 4 && offset % 4 == 0 && offset < sizeof e.reg);
    if (offset == REG_CTRL && value & CTRL_RST) {
        assert_false(dma_allowed);
        e_reset();
        if (e.dead) e.reg[REG_CTRL / 4] = CTRL_RST;
        return;
    }
    // 4.6.5, 4.6.6: rings are set up while receiver and transmitter are off; 10.2.5.8, 10.2.6.7: 128-byte
    // multiples
    if (offset == REG_RDBAL || offset == REG_RDLEN) assert_false(e.reg[REG_RCTL / 4] & RCTL_EN);
    if (offset == REG_TDBAL || offset == REG_TDLEN) assert_false(e.reg[REG_TCTL / 4] & TCTL_EN);
    if (offset == REG_RDLEN || offset == REG_TDLEN) assert_int_equal(value % 128, 0);
    if (offset == REG_RDT || offset == REG_TDT)
        assert_true(value < e.reg[(offset - REG_RDT + REG_RDLEN) / 4] / 16);
    if ((offset == REG_RCTL && value & RCTL_EN) || (offset == REG_TCTL && value & TCTL_EN))
        assert_true(dma_allowed);
    if (offset == REG_RCTL && value & RCTL_EN) {
        assert_true(e_ring(REG_RDBAL) && e_ring(REG_RDBAL) % 16 == 0 && e.reg[REG_RDLEN / 4]);
        for (uint32_t i = 0; i < MTA_WORDS; i++) assert_int_equal(e.reg[REG_MTA / 4 + i], 0);
    }
    if (offset == REG_TDT && e.reg[REG_TCTL / 4] & TCTL_EN) e.doorbells++;
    e.reg[offset / 4] = (uint32_t)value;
}

static uint32_t e_config(void *self, uint32_t offset, uint32_t bytes)
{
    (void)self;
    (void)offset;
    (void)bytes;
    return 0;
}

/* A frame longer than a buffer goes on in the next descriptor (7.1.3). */
static int e_arrive(const uint8_t *frame, uint32_t bytes)
{
    uint32_t count = e.reg[REG_RDLEN / 4] / 16, size = 16384, need = (bytes + size - 1) / size;
    uint32_t *head = &e.reg[REG_RDH / 4], tail = e.reg[REG_RDT / 4];
    assert_true(e.reg[REG_RCTL / 4] & RCTL_EN);
    assert_int_equal(e.reg[REG_RCTL / 4] & RCTL_16K, RCTL_16K);
    if (!(e.reg[REG_STATUS / 4] & STATUS_LU)) return 0;
    if (bytes > 1518 && !(e.reg[REG_RCTL / 4] & RCTL_LPE)) return 0;
    if ((tail + count - *head) % count < need) {
        e.reg[REG_MPC / 4]++;
        return 0;
    }
    for (uint32_t done = 0; done < bytes; done += size) {
        struct e1000e_rx *r = (struct e1000e_rx *)(void *)at(e_ring(REG_RDBAL)) + *head;
        uint32_t n = bytes - done < size ? bytes - done : size;
        assert_int_equal(r->status, 0); // software has looked at what was in it
        memcpy(at(r->address), frame + done, n);
        r->length = (uint16_t)n;
        r->errors = 0;
        r->status = (uint8_t)(RX_STATUS_DD | (done + n == bytes ? RX_STATUS_EOP : 0));
        *head = (*head + 1) % count;
    }
    return 1;
}

static uint32_t e_transmit(uint32_t most)
{
    uint32_t n = 0, count = e.reg[REG_TDLEN / 4] / 16, *head = &e.reg[REG_TDH / 4];
    assert_true(e.reg[REG_TCTL / 4] & TCTL_EN);
    if (!(e.reg[REG_STATUS / 4] & STATUS_LU)) return 0;
    for (; n < most && *head != e.reg[REG_TDT / 4]; n++, *head = (*head + 1) % count) {
        struct e1000e_tx *t = (struct e1000e_tx *)(void *)at(e_ring(REG_TDBAL)) + *head;
        assert_int_equal(t->command, TX_COMMAND_EOP | TX_COMMAND_IFCS | TX_COMMAND_RS);
        assert_int_equal(t->status, 0);
        nic_model_check_sent(at(t->address), t->length);
        t->status = TX_STATUS_DD;
    }
    return n;
}

static void e_set_link(int up)
{
    e.reg[REG_STATUS / 4] = up ? STATUS_LU | 2 << STATUS_SPEED_SHIFT : 0;
}

static struct nic_device e_make(void)
{
    memset(&e, 0, sizeof e);
    dma_allowed = 0;
    e_reset();
    e_set_link(1);
    e.reg[REG_RCTL / 4] = RCTL_EN; // a boot loader left it running
    return (struct nic_device){NULL, e_config, e_read, e_write, nic_model_memory, allow_dma, nic_model_now};
}

static void e_set_dead(int dead)
{
    e.dead = dead;
}

static uint32_t e_doorbells(void)
{
    return e.doorbells;
}

const struct nic_model e1000e_model = {&e1000e_driver, e_make,     e_set_link, e_set_dead,
                                       e_arrive,       e_transmit, e_doorbells};
