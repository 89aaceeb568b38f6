/* rtl8125.c: Realtek RTL8125A, B and D: one ring each way of descriptors with an ownership bit, no offloads,
 * polled. What is done in which order follows what r8169 and rge(4) do (rtl8125_regs.h names them); their
 * microcode patches for PHY and MCU and their tuning of the PCIe PHY are left out: the device runs with what
 * it brings along. */
#include <string.h>

#include "duck/nic/nic.h"
#include "duck/nic/ring.h"
#include "duck/nic/rtl8125_regs.h"

enum {
    MILLISECOND = 1000000,
    MUST_NS = 1000 * MILLISECOND, // what does not come in a second does not come
    MAY_NS = 10 * MILLISECOND, // what is asked for, but not waited for at any price: r8169 and rge go on, too
};

static struct {
    struct nic_device d;
    uint32_t revision;                      // REVISION_A, _B, _D
    volatile struct rtl8125_descriptor *rx; // (NIC_RING)
    volatile struct rtl8125_descriptor *tx; // (NIC_RING)
    volatile struct rtl8125_tally *tally;   // where the device dumps its counters
    uint64_t rx_ring, tx_ring, tally_address;
    struct ring ring;
    uint64_t rung_ns; // when the doorbell was rung last
    uint64_t dumps;   // of counters that were asked for
    uint16_t missed;  // as of the last dump
    uint32_t bad;     // as of the last dump
} the;

static uint32_t get(uint32_t reg, uint32_t bytes)
{
    return (uint32_t)the.d.read(the.d.self, RTL_BAR, reg, bytes);
}

static void set(uint32_t reg, uint32_t bytes, uint32_t value)
{
    the.d.write(the.d.self, RTL_BAR, reg, bytes, value);
}

static void clear_bits(uint32_t reg, uint32_t bytes, uint32_t bits)
{
    set(reg, bytes, get(reg, bytes) & ~bits);
}

static void set_bits(uint32_t reg, uint32_t bytes, uint32_t bits)
{
    set(reg, bytes, get(reg, bytes) | bits);
}

static int wait_for(uint32_t reg, uint32_t bytes, uint32_t mask, uint32_t value, uint64_t ns)
{
    return nic_wait_for(&the.d, (struct nic_register){RTL_BAR, reg, bytes}, mask, value, ns);
}

static void rest(uint64_t ns)
{
    nic_rest(&the.d, ns);
}

/* ---- registers behind windows ---- */

static uint16_t mac_get(uint32_t reg)
{
    set(REG_MAC_OCP, 4, reg << OCP_SHIFT);
    return (uint16_t)get(REG_MAC_OCP, 4);
}

static void mac_set(uint32_t reg, uint32_t value)
{
    set(REG_MAC_OCP, 4, (uint32_t)OCP_FLAG | reg << OCP_SHIFT | value);
}

static void mac_change(uint32_t reg, uint32_t clear, uint32_t bits)
{
    mac_set(reg, (mac_get(reg) & ~clear) | bits);
}

static int phy_get(uint32_t reg, uint16_t *value)
{
    set(REG_PHY_OCP, 4, reg << OCP_SHIFT);
    if (wait_for(REG_PHY_OCP, 4, (uint32_t)OCP_FLAG, (uint32_t)OCP_FLAG, MUST_NS)) return -1;
    *value = (uint16_t)get(REG_PHY_OCP, 4);
    return 0;
}

static int phy_set(uint32_t reg, uint32_t value)
{
    set(REG_PHY_OCP, 4, (uint32_t)OCP_FLAG | reg << OCP_SHIFT | value);
    return wait_for(REG_PHY_OCP, 4, (uint32_t)OCP_FLAG, 0, MUST_NS);
}

static int phy_change(uint32_t reg, uint32_t clear, uint32_t bits)
{
    uint16_t value;
    return phy_get(reg, &value) || phy_set(reg, (value & ~clear) | bits) ? -1 : 0;
}

/* ---- start ---- */

static int identify(const char **why)
{
    uint32_t revision = get(REG_TX_CONFIG, 4) >> REVISION_SHIFT & REVISION_MASK;
    *why = "neither RTL8125A nor B nor D";
    the.revision = revision;
    if ((revision & REVISION_D_MASK) == REVISION_D) the.revision = REVISION_D;
    return the.revision == REVISION_A || the.revision == REVISION_B || the.revision == REVISION_D ? 0 : -1;
}

/* A boot loader may have left everything running: nothing may reach memory any more before the reset.
 * r8169 rtl8169_cleanup, rge_reset. FIFOs that do not get empty are no reason to stop: the reset follows. */
static int reset(const char **why)
{
    enum { GATE_NS = 2 * MILLISECOND };
    set(REG_INT_MASK, 4, 0);
    set(REG_INT_STATUS, 4, UINT32_MAX);
    clear_bits(REG_RX_CONFIG, 4, RX_ACCEPT);
    set_bits(REG_MISC, 4, MISC_RX_GATE);
    rest(GATE_NS);
    if (the.revision != REVISION_A) set_bits(REG_CMD, 1, CMD_STOP);
    wait_for(REG_MCU, 1, MCU_FIFOS_EMPTY, MCU_FIFOS_EMPTY, MAY_NS);
    if (the.revision != REVISION_A) wait_for(REG_IDLE, 2, IDLE_ALL, IDLE_ALL, MAY_NS);
    set(REG_CMD, 1, CMD_RESET);
    *why = "reset does not end";
    return wait_for(REG_CMD, 1, CMD_RESET, 0, MUST_NS);
}

/* Takes the receiver back from the management unit: r8169 rtl_hw_init_8125. */
static void leave_out_of_band(void)
{
    mac_set(0xc0bc, 0x00ff); // rge_exit_oob: no wake-on-WAN
    clear_bits(REG_MCU, 1, MCU_OUT_OF_BAND);
    mac_change(0xe8de, 0x4000, 0);
    wait_for(REG_MCU, 1, MCU_LISTS_READY, MCU_LISTS_READY, MAY_NS);
    mac_set(0xc0aa, 0x07d0);
    mac_set(0xc0a6, 0x0150);
    mac_set(0xc01e, 0x5555);
    wait_for(REG_MCU, 1, MCU_LISTS_READY, MCU_LISTS_READY, MAY_NS);
}

/* The vendor's address is in the backup registers; the filter uses the others. r8169 rtl_rar_set. */
static int set_address(uint8_t mac[6], const char **why)
{
    uint32_t all = 0;
    for (uint32_t i = 0; i < 6; i++) all |= mac[i] = (uint8_t)get(REG_MAC_BACKUP + i, 1);
    *why = "no MAC address";
    if (all == 0 || mac[0] & 1) return -1;
    set(REG_CONFIG_LOCK, 1, CONFIG_UNLOCKED);
    set(REG_MAC4, 4, (uint32_t)mac[5] << 8 | mac[4]);
    get(REG_CMD, 1); // commits the write
    set(REG_MAC0, 4, (uint32_t)mac[3] << 24 | (uint32_t)mac[2] << 16 | (uint32_t)mac[1] << 8 | mac[0]);
    get(REG_CMD, 1);
    set(REG_CONFIG_LOCK, 1, CONFIG_LOCKED);
    return 0;
}

/* A line that sleeps between frames (energy-efficient Ethernet) costs latency: neither MAC nor PHY does it,
 * and the PHY offers it to nobody. rge_phy_config. *offered: it did so far. */
static int end_sleep_of_line(int *offered)
{
    static const struct {
        uint16_t reg, clear;
    } change[] = {{PHY_EEE_OFFER, EEE_OFFER_100 | EEE_OFFER_1000},
                  {PHY_EEE_OFFER_2500, EEE_OFFER_2500},
                  {0xa6d8, 0x0010},
                  {0xa428, 0x0080},
                  {0xa4a2, 0x0200},
                  {0xa442, 0x3000},
                  {0xa430, 0x8000}};
    uint16_t eee, eee_2500;
    if (phy_get(PHY_EEE_OFFER, &eee) || phy_get(PHY_EEE_OFFER_2500, &eee_2500)) return -1;
    *offered = eee & (EEE_OFFER_100 | EEE_OFFER_1000) || eee_2500 & EEE_OFFER_2500;
    mac_change(MAC_EEE, MAC_EEE_BITS, 0);
    mac_change(0xe052, 0x0001, 0);
    if (the.revision == REVISION_A) mac_change(0xeb62, 0x0006, 0);
    int a = the.revision == REVISION_A;
    if (phy_change(0xa432, a ? 0x0010 : 0, a ? 0 : 0x0010)) return -1;
    for (uint32_t i = 0; i < sizeof change / sizeof *change; i++)
        if (phy_change(change[i].reg, change[i].clear, 0)) return -1;
    return 0;
}

/* Wakes the PHY and lets it offer 2.5 Gb/s. A link that is as it should be is left alone: negotiating again
 * takes seconds. rge_set_phy_power, rge_ifmedia_upd. */
static int start_phy(const char **why)
{
    enum { WAKE_NS = 100 * MILLISECOND };
    uint16_t control, advertised, state;
    uint64_t start = the.d.now(the.d.self);
    int eee;
    *why = "the PHY does not answer";
    set_bits(REG_PM, 1, PM_PLL_ALWAYS);
    if (phy_get(PHY_BMCR, &control)) return -1;
    int asleep = control & BMCR_POWER_DOWN || !(control & BMCR_NEGOTIATE);
    if (asleep && phy_set(PHY_BMCR, BMCR_NEGOTIATE)) return -1;
    do { // rge goes on when it is in another state
        if (phy_get(PHY_STATE, &state)) return -1;
    } while ((state & PHY_STATE_MASK) != PHY_STATE_RUNS && the.d.now(the.d.self) - start < WAKE_NS);
    if (end_sleep_of_line(&eee) || phy_get(PHY_ADVERTISE, &advertised)) return -1;
    if (!asleep && !eee && advertised & ADVERTISE_2500) return 0;
    if (phy_set(PHY_ADVERTISE, advertised | ADVERTISE_2500)) return -1;
    return phy_set(PHY_BMCR, BMCR_NEGOTIATE | BMCR_RESTART);
}

/* r8169 rtl_hw_start_8125_common: settings that only their registers' numbers are known of, in its order. */
static void configure_mac(void)
{
    static const struct {
        uint16_t reg, clear, set;
    } change[] = {
        {0xd40a, 0x0010, 0},      {0xc140, 0xffff, 0xffff}, {0xc142, 0xffff, 0xffff},
        {0xd3e2, 0x0fff, 0x03a9}, {0xd3e4, 0x00ff, 0},      {0xe860, 0, 0x0080},
        {MAC_TX_FORMAT, 1, 0},    {0xc0b4, 0, 0x000c},      {0xeb6a, 0x00ff, 0x0033},
        {0xeb50, 0x03e0, 0x0040}, {0xe056, 0x00f0, 0},      {0xe040, 0x1000, 0},
        {0xea1c, 0x0003, 0x0001}, {0xea1c, 0x0004, 0},      {0xe0c0, 0x4f0f, 0x4403},
        {0xe052, 0x0080, 0x0068}, {0xd430, 0x0fff, 0x047f}, {MAC_TCAM, 0, 1},
    };
    int b = the.revision == REVISION_B;
    mac_change(MAC_TALLY, 0, 3);
    for (uint32_t i = 0; i < sizeof change / sizeof *change; i++)
        mac_change(change[i].reg, change[i].clear, change[i].set);
    mac_change(0xe614, 0x0700, b ? 0x0200 : 0x0300);
    mac_change(0xe63e, 0x0c30, b ? 0 : 0x0020);
    rest(1000);
    mac_change(MAC_TCAM, 1, 0);
    clear_bits(REG_1880, 2, BITS_1880);
    mac_set(0xe098, 0xc302);
    for (uint64_t start = the.d.now(the.d.self); mac_get(MAC_TCAM_BUSY) & 0x2000;)
        if (the.d.now(the.d.self) - start > MAY_NS) break;
    mac_change(0xc0ac, 0, 0x1f80); // what ends PCIe link state L1
}

static void open_gate(void)
{
    clear_bits(REG_MISC, 4, MISC_RX_GATE);
}

/* r8169 rtl_hw_start and rtl_hw_start_8125. Power saving of the PCIe link stays off: its latency is ours. */
static void configure(void)
{
    set(REG_CONFIG_LOCK, 1, CONFIG_UNLOCKED);
    clear_bits(REG_CONFIG2, 1, CONFIG2_CLOCK_REQUEST);
    clear_bits(REG_CONFIG5, 1, CONFIG5_ASPM);
    mac_change(0xe092, 0x00ff, 0);
    set(REG_C_PLUS, 2, get(REG_C_PLUS, 2) & C_PLUS_KEEP & ~(uint32_t)C_PLUS_OFFLOADS);
    set(REG_INT_CFG0, 1, 0);
    for (uint32_t i = 0; i < (the.revision == REVISION_B ? 0x80 : 0x100); i += 4) set(REG_COALESCE + i, 4, 0);
    if (the.revision == REVISION_B) set(REG_INT_CFG1, 2, 0);
    clear_bits(REG_CONFIG3, 1, CONFIG3_READY_TO_L23);
    set(REG_0382, 2, VALUE_0382);
    set(REG_RSS, 4, 0);
    set(REG_QUEUES, 2, 0);
    clear_bits(REG_CONFIG1, 1, CONFIG1_SPEED_DOWN);
    configure_mac();
    open_gate();
    set(REG_RX_MAX, 2, RX_MAX_START);
    set(REG_TX_HIGH, 4, (uint32_t)(the.tx_ring >> 32));
    set(REG_TX_LOW, 4, (uint32_t)the.tx_ring);
    set(REG_RX_HIGH, 4, (uint32_t)(the.rx_ring >> 32));
    set(REG_RX_LOW, 4, (uint32_t)the.rx_ring);
    set(REG_CONFIG_LOCK, 1, CONFIG_LOCKED);
}

/* ---- descriptors: struct ring_ops ---- */

static void arm(uint32_t i)
{
    the.rx[i].vlan = 0;
    the.rx[i].address = ring_rx_address(&the.ring, i);
    __atomic_thread_fence(__ATOMIC_RELEASE); // the rest of the descriptor before its owner
    the.rx[i].status = (uint32_t)DESCRIPTOR_OWN | (i + 1 == NIC_RING ? DESCRIPTOR_END : 0) | NIC_BUFFER;
}

/* A frame that is longer than a buffer is spread over descriptors, and the last one has its length. */
static uint32_t look(uint32_t i, uint32_t *bytes)
{
    uint32_t status = the.rx[i].status;
    if (status & (uint32_t)DESCRIPTOR_OWN) return RING_EMPTY;
    __atomic_thread_fence(__ATOMIC_ACQUIRE); // the frame after its owner
    *bytes = (status & RX_LENGTH) - FCS_BYTES;
    return RING_THERE | (status & DESCRIPTOR_LAST ? RING_LAST : 0) | (status & RX_ERROR ? RING_BAD : 0);
}

static void queue(uint32_t i, uint32_t bytes)
{
    the.tx[i].address = ring_tx_address(&the.ring, i);
    the.tx[i].vlan = 0;
    __atomic_thread_fence(__ATOMIC_RELEASE); // frame and descriptor before its owner
    the.tx[i].status = (uint32_t)DESCRIPTOR_OWN | (i + 1 == NIC_RING ? DESCRIPTOR_END : 0) |
                       DESCRIPTOR_FIRST | DESCRIPTOR_LAST | bytes;
}

static void ring_doorbell(uint32_t tail)
{
    (void)tail; // the device looks at the descriptors
    set(REG_TX_POLL, 2, TX_POLL_NOW);
    the.rung_ns = the.d.now(the.d.self);
}

static int is_sent(uint32_t i)
{
    return !(the.tx[i].status & (uint32_t)DESCRIPTOR_OWN);
}

static const struct ring_ops ring_ops = {.arm = arm,
                                         .look = look,
                                         .queue = queue,
                                         .doorbell = ring_doorbell,
                                         .is_sent = is_sent,
                                         .rx_bytes = NIC_BUFFER,
                                         .tx_least = TX_FRAME_MIN,
                                         .tx_most = NIC_RING};

static int make_rings(const char **why)
{
    the.rx = the.d.memory(the.d.self, NIC_RING * sizeof *the.rx, &the.rx_ring);
    the.tx = the.d.memory(the.d.self, NIC_RING * sizeof *the.tx, &the.tx_ring);
    the.tally = the.d.memory(the.d.self, sizeof *the.tally, &the.tally_address);
    *why = "no memory for rings";
    if (!the.rx || !the.tx || !the.tally) return -1;
    return ring_make(&the.ring, &ring_ops, &the.d, why);
}

static void start(void)
{
    uint32_t receive = (uint32_t)RX_CONFIG_START | (the.revision == REVISION_A ? 0 : RX_CONFIG_PAUSE_SLOT);
    get(REG_CMD, 1); // commits what was written
    set(REG_CMD, 1, CMD_TX | CMD_RX);
    set(REG_TX_CONFIG, 4, TX_CONFIG_START);
    set(REG_MAR4, 4, 0);
    set(REG_MAR0, 4, 0);
    set(REG_RX_CONFIG, 4, receive | RX_ACCEPT_MINE | RX_ACCEPT_BROADCAST);
}

/* ---- frames ---- */

/* A doorbell that comes while the device finishes a burst can be lost (r8169 rtl_tx): whoever polls rings it
 * again when frames have waited for a millisecond. */
static void ring_again(void)
{
    struct ring *r = &the.ring;
    if (r->tx_done == r->tx_next) return;
    ring_reclaim(r);
    if (r->tx_done != r->tx_next && the.d.now(the.d.self) - the.rung_ns > MILLISECOND) ring_doorbell(0);
}

static uint32_t rtl8125_recv(void *self, struct frame *out, uint32_t max)
{
    ring_again();
    return ring_recv(self, out, max);
}

static uint32_t rtl8125_mbps(void *self)
{
    (void)self;
    uint32_t status = get(REG_PHY_STATUS, 2);
    if (!(status & PHY_STATUS_LINK)) return 0;
    if (status & PHY_STATUS_2500) return 2500;
    if (status & PHY_STATUS_1000) return 1000;
    return status & PHY_STATUS_100 ? 100 : 10;
}

/* The device dumps its counters into memory. Nobody waits for that: a dump is taken when it is there, and the
 * next one is asked for. The first one, asked for when the device is opened, says what was counted before
 * that: a reset does not clear the counters. */
static void rtl8125_stats(void *self, struct nic_stats *out)
{
    (void)self;
    int there = !(get(REG_TALLY_LOW, 4) & TALLY_DUMP);
    if (the.dumps && there) {
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        uint16_t missed = the.tally->rx_missed; // 16 bits that wrap around
        uint32_t bad = the.tally->rx_errors, lost = (uint16_t)(missed - the.missed);
        if (the.dumps > 1) {
            the.ring.stats.dropped += lost;
            the.ring.stats.errors += bad - the.bad - lost; // frames that are missed are errors, too
        }
        the.missed = missed;
        the.bad = bad;
    }
    if (there) {
        set(REG_TALLY_HIGH, 4, (uint32_t)(the.tally_address >> 32));
        set(REG_TALLY_LOW, 4, (uint32_t)the.tally_address | TALLY_DUMP);
        the.dumps++;
    }
    *out = the.ring.stats;
}

/* r8169 rtl8169_down, __rtl8169_set_wol, rtl_wol_enable_rx; rge_wol, rge_wol_power. The link keeps its speed:
 * r8169 slows it down to save power, which takes seconds. */
static int rtl8125_arm_wake(void *self)
{
    const char *why;
    (void)self;
    if (reset(&why)) return -1; // no more DMA
    set(REG_CONFIG_LOCK, 1, CONFIG_UNLOCKED);
    mac_change(MAC_WAKE, 0, MAC_WAKE_MAGIC);
    clear_bits(REG_CONFIG3, 1, CONFIG3_WAKE_LINK | CONFIG3_WAKE_MAGIC); // for older chips
    set_bits(REG_CONFIG1, 1, CONFIG1_POWER);
    set_bits(REG_CONFIG2, 1, CONFIG2_PME_SIGNAL);
    clear_bits(REG_CONFIG5, 1, CONFIG5_WAKE_FRAMES);
    set_bits(REG_CONFIG5, 1, CONFIG5_LAN_WAKE);
    set(REG_CONFIG_LOCK, 1, CONFIG_LOCKED);
    set_bits(REG_RX_CONFIG, 4, RX_ACCEPT_MINE | RX_ACCEPT_BROADCAST);
    open_gate(); // the reset has shut it

    get(REG_CMD, 1); // commits what was written
    return 0;
}

static int rtl8125_open(struct nic *out, const struct nic_device *d, const char **why)
{
    struct nic_stats none;
    memset(&the, 0, sizeof the);
    the.d = *d;
    *out = (struct nic){.self = &the.ring,
                        .mtu = NIC_MTU,
                        .recv = rtl8125_recv,
                        .send = ring_send,
                        .link_mbps = rtl8125_mbps,
                        .stats = rtl8125_stats,
                        .arm_wake = rtl8125_arm_wake};
    if (identify(why) || reset(why)) return -1;
    leave_out_of_band();
    if (set_address(out->mac, why) || start_phy(why) || make_rings(why)) return -1;
    configure();
    the.d.allow_dma(the.d.self);
    start();
    rtl8125_stats(NULL, &none);
    return 0;
}

const struct nic_driver rtl8125_driver = {"rtl8125", REALTEK_VENDOR, {DEVICE_RTL8125, 0}, rtl8125_open};
