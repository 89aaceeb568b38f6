/* e1000e.c: Intel 82574 (QEMU's e1000e): one legacy ring each way, no offloads, polled. */
#include <string.h>

#include "duck/nic/e1000e_regs.h"
#include "duck/nic/nic.h"

enum { RESET_NS = 100000000, RX_BUFFER = 16384 }; // the sizes are 256 .. 2048, 4096, 8192, 16384

static struct {
    struct nic_device d;
    volatile struct e1000e_rx *rx; // (NIC_RING)
    volatile struct e1000e_tx *tx; // (NIC_RING)
    uint8_t *rx_buffer, *tx_buffer;
    uint64_t rx_address;
    uint32_t rx_next;          // the descriptor that is looked at next
    uint32_t lent;             // frames the caller holds: the descriptors in front of rx_next
    uint32_t tx_next, tx_done; // free running; tx_done: sent by the device
    int skip;                  // inside of a frame that is longer than a buffer
    struct nic_stats stats;
} the;

static uint32_t get(uint32_t reg)
{
    return (uint32_t)the.d.read(the.d.self, 0, reg, 4);
}

static void set(uint32_t reg, uint32_t value)
{
    the.d.write(the.d.self, 0, reg, 4, value);
}

/* 4.6.1 and 4.6.2: interrupts off, reset, interrupts off again. */
static int reset(const char **why)
{
    uint64_t start = the.d.now(the.d.self);
    set(REG_IMC, UINT32_MAX);
    set(REG_RCTL, 0);
    set(REG_TCTL, 0);
    set(REG_CTRL, get(REG_CTRL) | CTRL_RST);
    *why = "reset does not end";
    while (get(REG_CTRL) & CTRL_RST)
        if (the.d.now(the.d.self) - start > RESET_NS) return -1;
    set(REG_IMC, UINT32_MAX);
    get(REG_ICR); // reading clears
    set(REG_CTRL, get(REG_CTRL) | CTRL_SLU);
    return 0;
}

/* 4.6.5: receive initialization. */
static int start_receive(const char **why)
{
    uint64_t ring;
    the.rx = the.d.memory(the.d.self, NIC_RING * sizeof *the.rx, &ring);
    the.rx_buffer = the.d.memory(the.d.self, (size_t)NIC_RING * RX_BUFFER, &the.rx_address);
    *why = "no memory for rings";
    if (!the.rx || !the.rx_buffer) return -1;
    for (uint32_t i = 0; i < NIC_RING; i++) the.rx[i].address = the.rx_address + (uint64_t)i * RX_BUFFER;
    for (uint32_t i = 0; i < MTA_WORDS; i++) set(REG_MTA + 4 * i, 0);
    set(REG_RXCSUM, 0);
    set(REG_RDBAL, (uint32_t)ring);
    set(REG_RDBAH, (uint32_t)(ring >> 32));
    set(REG_RDLEN, NIC_RING * sizeof *the.rx);
    set(REG_RDH, 0);
    set(REG_RCTL, RCTL_EN | RCTL_BAM | RCTL_SECRC | RCTL_LPE | RCTL_16K);
    nic_barrier();
    set(REG_RDT, NIC_RING - 1); // head == tail would mean: none
    return 0;
}

/* 4.6.6: transmit initialization. */
static int start_transmit(const char **why)
{
    uint64_t ring, buffers;
    the.tx = the.d.memory(the.d.self, NIC_RING * sizeof *the.tx, &ring);
    the.tx_buffer = the.d.memory(the.d.self, (size_t)NIC_RING * NIC_BUFFER, &buffers);
    *why = "no memory for rings";
    if (!the.tx || !the.tx_buffer) return -1;
    for (uint32_t i = 0; i < NIC_RING; i++) the.tx[i].address = buffers + (uint64_t)i * NIC_BUFFER;
    set(REG_TDBAL, (uint32_t)ring);
    set(REG_TDBAH, (uint32_t)(ring >> 32));
    set(REG_TDLEN, NIC_RING * sizeof *the.tx);
    set(REG_TDH, 0);
    set(REG_TDT, 0);
    set(REG_TIPG, TIPG_COPPER);
    set(REG_TCTL, TCTL_EN | TCTL_PSP | TCTL_CT | TCTL_COLD_FULL);
    return 0;
}

/* Gives the descriptors of the last batch back: head may move up to the one before the tail. */
static void rearm(void)
{
    if (!the.lent) return;
    for (uint32_t i = the.lent; i > 0; i--) {
        volatile struct e1000e_rx *r = &the.rx[(the.rx_next - i) % NIC_RING];
        r->address = the.rx_address + (uint64_t)((the.rx_next - i) % NIC_RING) * RX_BUFFER;
        r->status = 0;
    }
    nic_barrier();
    set(REG_RDT, (the.rx_next - 1) % NIC_RING);
    the.lent = 0;
}

/* 1: descriptor i holds a whole frame. */
static int is_frame(uint32_t i)
{
    uint8_t status = the.rx[i].status, errors = the.rx[i].errors;
    uint16_t length = the.rx[i].length;
    int inside = the.skip;
    the.skip = !(status & RX_STATUS_EOP); // the rest of it follows
    if (!inside && !the.skip && !errors && length >= NIC_FRAME_MIN && length <= NIC_FRAME_MAX) return 1;
    if (!the.skip) the.stats.errors++; // once per frame
    return 0;
}

static uint32_t e1000e_recv(void *self, struct frame *out, uint32_t max)
{
    (void)self;
    uint32_t n = 0;
    rearm();
    if (max > NIC_BATCH) max = NIC_BATCH;
    // Frames that are dropped take descriptors too, hence the second bound: never the whole ring at once.
    while (n < max && the.lent < NIC_RING / 2) {
        uint32_t i = the.rx_next % NIC_RING;
        if (!(the.rx[i].status & RX_STATUS_DD)) break;
        __atomic_thread_fence(__ATOMIC_ACQUIRE); // the rest of the descriptor after its DD
        if (is_frame(i)) out[n++] = (struct frame){the.rx_buffer + (size_t)i * RX_BUFFER, the.rx[i].length};
        the.rx_next++;
        the.lent++;
    }
    the.stats.in += n;
    return n;
}

static uint32_t e1000e_send(void *self, const struct frame *f, uint32_t count)
{
    (void)self;
    uint32_t n = 0, before = the.tx_next;
    while (the.tx_done != the.tx_next && the.tx[the.tx_done % NIC_RING].status & TX_STATUS_DD) // reclaim
        the.tx_done++;
    for (; n < count && the.tx_next - the.tx_done < NIC_RING - 1; n++) { // queue
        volatile struct e1000e_tx *t = &the.tx[the.tx_next % NIC_RING];
        if (f[n].bytes > NIC_FRAME_MAX) {
            the.stats.errors++;
            continue;
        }
        memcpy(the.tx_buffer + (size_t)(the.tx_next % NIC_RING) * NIC_BUFFER, f[n].data, f[n].bytes);
        t->length = (uint16_t)f[n].bytes;
        t->status = 0;
        t->command = TX_COMMAND_EOP | TX_COMMAND_IFCS | TX_COMMAND_RS;
        the.tx_next++;
        the.stats.out++;
    }
    if (the.tx_next == before) return n;
    nic_barrier();
    set(REG_TDT, the.tx_next % NIC_RING);
    return n;
}

static uint32_t e1000e_mbps(void *self)
{
    static const uint32_t mbps[] = {10, 100, 1000, 1000};
    (void)self;
    uint32_t status = get(REG_STATUS);
    return status & STATUS_LU ? mbps[status >> STATUS_SPEED_SHIFT & 3] : 0;
}

static void e1000e_stats(void *self, struct nic_stats *out)
{
    (void)self;
    the.stats.dropped += get(REG_MPC);
    the.stats.errors += get(REG_CRCERRS);
    *out = the.stats;
}

/* 4.6: the software initialization sequence. */
static int e1000e_open(struct nic *out, const struct nic_device *d, const char **why)
{
    memset(&the, 0, sizeof the);
    the.d = *d;
    if (reset(why)) return -1;
    uint32_t low = get(REG_RAL0), high = get(REG_RAH0); // loaded from the NVM by the reset
    *why = "no MAC address";
    if (!(high & (uint32_t)RAH_AV)) return -1;
    if (start_receive(why) || start_transmit(why)) return -1;
    *out = (struct nic){.mtu = NIC_MTU,
                        .recv = e1000e_recv,
                        .send = e1000e_send,
                        .link_mbps = e1000e_mbps,
                        .stats = e1000e_stats};
    for (uint32_t i = 0; i < 6; i++) out->mac[i] = (uint8_t)(i < 4 ? low >> 8 * i : high >> 8 * (i - 4));
    return 0;
}

const struct nic_driver e1000e_driver = {"e1000e", INTEL_VENDOR, {DEVICE_82574L, 0}, e1000e_open};
