/* e1000e.c: Intel 82574 (QEMU's e1000e): one legacy ring each way, no offloads, polled. */
#include <string.h>

#include "duck/nic/e1000e_regs.h"
#include "duck/nic/nic.h"
#include "duck/nic/ring.h"

enum { RESET_NS = 100000000, RX_BUFFER = 16384 }; // the sizes are 256 .. 2048, 4096, 8192, 16384

static struct {
    struct nic_device d;
    volatile struct e1000e_rx *rx; // (NIC_RING)
    volatile struct e1000e_tx *tx; // (NIC_RING)
    struct ring ring;
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
    set(REG_IMC, UINT32_MAX);
    set(REG_RCTL, 0);
    set(REG_TCTL, 0);
    set(REG_CTRL, get(REG_CTRL) | CTRL_RST);
    *why = "reset does not end";
    if (nic_wait_for(&the.d, (struct nic_register){0, REG_CTRL, 4}, CTRL_RST, 0, RESET_NS)) return -1;
    set(REG_IMC, UINT32_MAX);
    get(REG_ICR); // reading clears
    set(REG_CTRL, get(REG_CTRL) | CTRL_SLU);
    return 0;
}

static void arm(uint32_t i)
{
    the.rx[i].address = ring_rx_address(&the.ring, i);
    the.rx[i].status = 0;
}

static void armed(uint32_t tail)
{
    set(REG_RDT, tail);
}

static uint32_t look(uint32_t i, uint32_t *bytes)
{
    uint8_t status = the.rx[i].status;
    if (!(status & RX_STATUS_DD)) return RING_EMPTY;
    __atomic_thread_fence(__ATOMIC_ACQUIRE); // the rest of the descriptor after its DD
    *bytes = the.rx[i].length;
    return RING_THERE | (status & RX_STATUS_EOP ? RING_LAST : 0) | (the.rx[i].errors ? RING_BAD : 0);
}

static void queue(uint32_t i, uint32_t bytes)
{
    the.tx[i].address = ring_tx_address(&the.ring, i);
    the.tx[i].length = (uint16_t)bytes;
    the.tx[i].status = 0;
    the.tx[i].command = TX_COMMAND_EOP | TX_COMMAND_IFCS | TX_COMMAND_RS;
}

static void ring_doorbell(uint32_t tail)
{
    set(REG_TDT, tail);
}

static int is_sent(uint32_t i)
{
    return the.tx[i].status & TX_STATUS_DD;
}

static const struct ring_ops ring_ops = {.arm = arm,
                                         .armed = armed,
                                         .look = look,
                                         .queue = queue,
                                         .doorbell = ring_doorbell,
                                         .is_sent = is_sent,
                                         .rx_bytes = RX_BUFFER,
                                         .tx_most = NIC_RING - 1}; // head == tail means: none

static void point_ring(uint32_t low, uint64_t address)
{
    set(low, (uint32_t)address);
    set(low + (REG_RDBAH - REG_RDBAL), (uint32_t)(address >> 32));
    set(low + (REG_RDLEN - REG_RDBAL), NIC_RING * sizeof *the.rx);
    set(low + (REG_RDH - REG_RDBAL), 0);
    set(low + (REG_RDT - REG_RDBAL), 0);
}

/* 4.6.5 and 4.6.6: what is set while receiver and transmitter are off. */
static int make_rings(const char **why)
{
    uint64_t rx, tx;
    the.rx = the.d.memory(the.d.self, NIC_RING * sizeof *the.rx, &rx);
    the.tx = the.d.memory(the.d.self, NIC_RING * sizeof *the.tx, &tx);
    *why = "no memory for rings";
    if (!the.rx || !the.tx || ring_make(&the.ring, &ring_ops, &the.d, why)) return -1;
    for (uint32_t i = 0; i < MTA_WORDS; i++) set(REG_MTA + 4 * i, 0);
    set(REG_RXCSUM, 0);
    point_ring(REG_RDBAL, rx);
    point_ring(REG_TDBAL, tx);
    set(REG_TIPG, TIPG_COPPER);
    return 0;
}

static void start(void)
{
    set(REG_TCTL, TCTL_EN | TCTL_PSP | TCTL_CT | TCTL_COLD_FULL);
    set(REG_RCTL, RCTL_EN | RCTL_BAM | RCTL_SECRC | RCTL_LPE | RCTL_16K);
    nic_barrier();
    set(REG_RDT, NIC_RING - 1); // head == tail would mean: none
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
    the.ring.stats.dropped += get(REG_MPC);
    the.ring.stats.errors += get(REG_CRCERRS);
    *out = the.ring.stats;
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
    if (make_rings(why)) return -1;
    the.d.allow_dma(the.d.self);
    start();
    *out = (struct nic){.self = &the.ring,
                        .mtu = NIC_MTU,
                        .recv = ring_recv,
                        .send = ring_send,
                        .link_mbps = e1000e_mbps,
                        .stats = e1000e_stats};
    for (uint32_t i = 0; i < 6; i++) out->mac[i] = (uint8_t)(i < 4 ? low >> 8 * i : high >> 8 * (i - 4));
    return 0;
}

const struct nic_driver e1000e_driver = {"e1000e", INTEL_VENDOR, {DEVICE_82574L, 0}, e1000e_open};
