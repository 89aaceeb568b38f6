/* igc.c: Intel I225 and I226 (2.5 Gb/s): one ring each way of advanced descriptors, no offloads, polled. */
#include <string.h>

#include "duck/nic/igc_regs.h"
#include "duck/nic/nic.h"

enum {
    FCS_BYTES = 4,
    MILLISECOND = 1000000,
    MUST_NS = 1000 * MILLISECOND, // what does not come in a second does not come
    MAY_NS = 100 * MILLISECOND,   // what is asked for, but not waited for at any price
};

static struct {
    struct nic_device d;
    volatile struct igc_rx *rx;     // (NIC_RING)
    volatile struct igc_tx *tx;     // (NIC_RING)
    uint8_t *rx_buffer, *tx_buffer; // (NIC_RING, NIC_BUFFER)
    uint64_t rx_address, tx_address;
    uint32_t rx_next;          // the descriptor that is looked at next; free running
    uint32_t lent;             // frames the caller holds: the descriptors in front of rx_next
    uint32_t tx_next, tx_done; // free running; tx_done: sent by the device
    int skip;                  // inside of a frame that is longer than a buffer
    struct nic_stats stats;
} the;

static uint32_t get(uint32_t reg)
{
    return (uint32_t)the.d.read(the.d.self, IGC_BAR, reg, 4);
}

static void set(uint32_t reg, uint32_t value)
{
    the.d.write(the.d.self, IGC_BAR, reg, 4, value);
}

static void change(uint32_t reg, uint32_t clear, uint32_t bits)
{
    set(reg, (get(reg) & ~clear) | bits);
}

/* Until the masked register has the value. 0, or -1 when that takes too long. */
static int wait_for(uint32_t reg, uint32_t mask, uint32_t value, uint64_t ns)
{
    uint64_t start = the.d.now(the.d.self);
    for (;;) {
        int late = the.d.now(the.d.self) - start > ns; // before the look: whoever was held up looks once more
        if ((get(reg) & mask) == value) return 0;
        if (late) return -1;
    }
}

static void rest(uint64_t ns)
{
    uint64_t start = the.d.now(the.d.self);
    while (the.d.now(the.d.self) - start < ns) {
    }
}

/* ---- reset ---- */

/* A boot loader may have left everything running: DMA is stopped before the reset (I210, 5.2.3.3), and the
 * device is left in peace for a while after it. igc_reset_hw_i225. */
static int reset(const char **why)
{
    enum { QUIET_NS = 10 * MILLISECOND, SILENCE_NS = 2 * MILLISECOND };
    change(REG_CTRL, 0, CTRL_MASTER_DISABLE);
    wait_for(REG_STATUS, STATUS_MASTER_ENABLE, 0, MAY_NS); // if not, the reset ends it
    set(REG_IMC, UINT32_MAX);
    set(REG_EIMC, UINT32_MAX);
    set(REG_RCTL, 0);
    set(REG_TCTL, TCTL_PSP);
    get(REG_STATUS); // commits what was written
    rest(QUIET_NS);
    change(REG_CTRL, 0, CTRL_DEV_RST);
    rest(SILENCE_NS);
    *why = "reset does not end";
    if (wait_for(REG_CTRL, CTRL_DEV_RST, 0, MUST_NS)) return -1;
    wait_for(REG_EECD, EECD_AUTO_RD, EECD_AUTO_RD, MAY_NS); // the drivers go on without; the address tells
    set(REG_IMC, UINT32_MAX);
    set(REG_EIMC, UINT32_MAX);
    get(REG_ICR); // reading clears
    return 0;
}

/* ---- PHY ---- */

/* Semaphores against other drivers, then against the firmware. The first one may have been left taken by a
 * boot loader that is gone: after a while it is ours. igc_get_hw_semaphore_i225. */
static int take_semaphores(void)
{
    uint64_t start = the.d.now(the.d.self);
    while (get(REG_SWSM) & SWSM_SMBI)
        if (the.d.now(the.d.self) - start > MAY_NS) {
            change(REG_SWSM, SWSM_SMBI | SWSM_SWESMBI, 0);
            if (get(REG_SWSM) & SWSM_SMBI) return -1;
            break;
        }
    start = the.d.now(the.d.self);
    for (;;) {
        change(REG_SWSM, 0, SWSM_SWESMBI);
        if (get(REG_SWSM) & SWSM_SWESMBI) return 0;
        if (the.d.now(the.d.self) - start > MAY_NS) return -1;
    }
}

static void give_semaphores(void)
{
    change(REG_SWSM, SWSM_SMBI | SWSM_SWESMBI, 0);
}

/* igc_acquire_swfw_sync_i225. */
static int take_phy(void)
{
    uint64_t start = the.d.now(the.d.self);
    for (;;) {
        if (take_semaphores()) return -1;
        uint32_t taken = get(REG_SW_FW_SYNC);
        if (!(taken & (SYNC_PHY | SYNC_PHY << 16))) {
            set(REG_SW_FW_SYNC, taken | SYNC_PHY);
            give_semaphores();
            return 0;
        }
        give_semaphores();
        if (the.d.now(the.d.self) - start > MUST_NS) return -1;
    }
}

static int give_phy(void)
{
    if (take_semaphores()) return -1;
    change(REG_SW_FW_SYNC, SYNC_PHY, 0);
    give_semaphores();
    return 0;
}

static int mdic(uint32_t command, uint32_t *answer)
{
    set(REG_MDIC, command);
    if (wait_for(REG_MDIC, MDIC_READY, MDIC_READY, MUST_NS)) return -1;
    *answer = get(REG_MDIC);
    return *answer & MDIC_ERROR || (*answer ^ command) & MDIC_REG_MASK ? -1 : 0;
}

static int phy_get(uint32_t reg, uint32_t *value)
{
    if (mdic(reg << MDIC_REG_SHIFT | MDIC_READ, value)) return -1;
    *value &= 0xffff;
    return 0;
}

static int phy_set(uint32_t reg, uint32_t value)
{
    uint32_t answer;
    return mdic(reg << MDIC_REG_SHIFT | MDIC_WRITE | value, &answer);
}

/* Where registers 13 and 14 point: IEEE 802.3, annex 22D. */
static int point_to(uint32_t device, uint32_t reg)
{
    return phy_set(PHY_MMD_CONTROL, device) || phy_set(PHY_MMD_DATA, reg) ||
                   phy_set(PHY_MMD_CONTROL, MMD_DATA | device)
               ? -1
               : 0;
}

/* Wakes the PHY and lets it offer 2.5 Gb/s. A link that is as it should be is left alone: negotiating again
 * takes seconds. igc_power_up_phy_copper, igc_phy_setup_autoneg, igc_copper_link_autoneg. */
static int set_up_phy(void)
{
    uint32_t control, advertised;
    if (phy_get(PHY_BMCR, &control)) return -1;
    int asleep = control & BMCR_POWER_DOWN || !(control & BMCR_NEGOTIATE);
    if (asleep && phy_set(PHY_BMCR, BMCR_NEGOTIATE)) return -1;
    if (point_to(MMD_NEGOTIATION, MULTI_GIGABIT) || phy_get(PHY_MMD_DATA, &advertised)) return -1;
    int offered = (advertised & ADVERTISE_2500) != 0;
    if (!offered && phy_set(PHY_MMD_DATA, advertised | ADVERTISE_2500)) return -1;
    if (phy_set(PHY_MMD_CONTROL, 0)) return -1;
    return asleep || !offered ? phy_set(PHY_BMCR, BMCR_NEGOTIATE | BMCR_RESTART) : 0;
}

static int start_phy(const char **why)
{
    *why = "the PHY is not to be had";
    change(REG_CTRL, CTRL_FORCE_SPEED | CTRL_FORCE_DUPLEX, CTRL_SET_LINK_UP);
    change(REG_PHPM, PHPM_GO_LINK_DOWN, 0);
    if (take_phy()) return -1;
    *why = "the PHY does not answer";
    int failed = set_up_phy();
    return give_phy() || failed ? -1 : 0;
}

/* ---- rings ---- */

static void point_ring(uint32_t low, uint64_t address)
{
    set(low, (uint32_t)address);
    set(low + (REG_RDBAH - REG_RDBAL), (uint32_t)(address >> 32));
    set(low + (REG_RDLEN - REG_RDBAL), NIC_RING * sizeof *the.rx);
    set(low + (REG_RDH - REG_RDBAL), 0);
    set(low + (REG_RDT - REG_RDBAL), 0);
}

static int enable_queue(uint32_t reg)
{
    set(reg, QUEUE_THRESHOLDS | QUEUE_ENABLE);
    return wait_for(reg, QUEUE_ENABLE, QUEUE_ENABLE, MUST_NS);
}

/* A descriptor as software writes it; nothing of what the device wrote back remains. */
static void arm(uint32_t i)
{
    the.rx[i].address = the.rx_address + (uint64_t)i * NIC_BUFFER;
    the.rx[i].status = 0;
    the.rx[i].length = the.rx[i].vlan = 0;
}

/* I210, 4.5.9: the queue is enabled, then the tail is moved; the receiver comes last (start). */
static int make_receive_ring(const char **why)
{
    uint64_t ring;
    the.rx = the.d.memory(the.d.self, NIC_RING * sizeof *the.rx, &ring);
    the.rx_buffer = the.d.memory(the.d.self, (size_t)NIC_RING * NIC_BUFFER, &the.rx_address);
    *why = "no memory for rings";
    if (!the.rx || !the.rx_buffer) return -1;
    for (uint32_t i = 0; i < NIC_RING; i++) arm(i);
    for (uint32_t i = 0; i < MTA_WORDS; i++) set(REG_MTA + 4 * i, 0);
    set(REG_MRQC, 0);
    set(REG_RXCSUM, 0);
    set(REG_RXDCTL, 0);
    point_ring(REG_RDBAL, ring);
    set(REG_SRRCTL, NIC_BUFFER / 1024 * SRRCTL_KILOBYTES | SRRCTL_ONE_BUFFER | (uint32_t)SRRCTL_DROP);
    *why = "the receive queue does not start";
    return enable_queue(REG_RXDCTL);
}

/* I210, 4.5.10. */
static int make_transmit_ring(const char **why)
{
    uint64_t ring;
    the.tx = the.d.memory(the.d.self, NIC_RING * sizeof *the.tx, &ring);
    the.tx_buffer = the.d.memory(the.d.self, (size_t)NIC_RING * NIC_BUFFER, &the.tx_address);
    *why = "no memory for rings";
    if (!the.tx || !the.tx_buffer) return -1;
    set(REG_TXDCTL, 0);
    point_ring(REG_TDBAL, ring);
    *why = "the transmit queue does not start";
    return enable_queue(REG_TXDCTL);
}

static void start(void)
{
    change(REG_DMACR, (uint32_t)DMACR_EN, 0); // waits for more frames: latency
    change(REG_EEER, EEER_LPI, 0);            // lets the line sleep: latency
    set(REG_WUC, 0);
    change(REG_CTRL_EXT, 0, CTRL_EXT_DRIVER_LOADED);
    set(REG_TCTL, TCTL_EN | TCTL_PSP | TCTL_CT | TCTL_RTLC);
    set(REG_RLPML, NIC_FRAME_MAX + FCS_BYTES); // longer frames stay outside
    set(REG_RCTL, RCTL_EN | RCTL_BAM | RCTL_SECRC | RCTL_LPE);
    nic_barrier();
    set(REG_RDT, NIC_RING - 1); // head == tail would mean: none
}

/* ---- frames ---- */

/* Gives the descriptors of the last batch back: head may move up to the one before the tail. */
static void rearm(void)
{
    if (!the.lent) return;
    for (; the.lent > 0; the.lent--) arm((the.rx_next - the.lent) % NIC_RING);
    nic_barrier();
    set(REG_RDT, (the.rx_next - 1) % NIC_RING);
}

/* 1: descriptor i holds a whole frame. */
static int is_frame(uint32_t i)
{
    uint32_t status = the.rx[i].status, length = the.rx[i].length;
    int inside = the.skip;
    the.skip = !(status & RX_EOP); // the rest of it follows
    if (!inside && !the.skip && !(status & (uint32_t)RX_ERROR) && length >= NIC_FRAME_MIN &&
        length <= NIC_FRAME_MAX)
        return 1;
    if (!the.skip) the.stats.errors++; // once per frame
    return 0;
}

static uint32_t igc_recv(void *self, struct frame *out, uint32_t max)
{
    (void)self;
    uint32_t n = 0;
    rearm();
    if (max > NIC_BATCH) max = NIC_BATCH;
    // Frames that are dropped take descriptors too, hence the second bound: never the whole ring at once.
    while (n < max && the.lent < NIC_RING / 2) {
        uint32_t i = the.rx_next % NIC_RING;
        if (!(the.rx[i].status & RX_DD)) break;
        __atomic_thread_fence(__ATOMIC_ACQUIRE); // the rest of the descriptor after its DD
        if (is_frame(i)) out[n++] = (struct frame){the.rx_buffer + (size_t)i * NIC_BUFFER, the.rx[i].length};
        the.rx_next++;
        the.lent++;
    }
    the.stats.in += n;
    return n;
}

static void queue(const struct frame *f)
{
    uint32_t i = the.tx_next % NIC_RING, bytes = f->bytes < TX_FRAME_MIN ? TX_FRAME_MIN : f->bytes;
    uint8_t *buffer = the.tx_buffer + (size_t)i * NIC_BUFFER;
    memcpy(buffer, f->data, f->bytes);
    memset(buffer + f->bytes, 0, bytes - f->bytes);
    the.tx[i].address = the.tx_address + (uint64_t)i * NIC_BUFFER;
    the.tx[i].command = TX_DATA | TX_ADVANCED | TX_EOP | TX_IFCS | TX_RS | bytes;
    the.tx[i].status = bytes << TX_PAYLOAD_SHIFT;
    the.tx_next++;
    the.stats.out++;
}

static uint32_t igc_send(void *self, const struct frame *f, uint32_t count)
{
    (void)self;
    uint32_t n = 0, before = the.tx_next;
    while (the.tx_done != the.tx_next && the.tx[the.tx_done % NIC_RING].status & TX_DD) // reclaim
        the.tx_done++;
    for (; n < count && (the.tx_next - the.tx_done < NIC_RING - 1 || f[n].bytes > NIC_FRAME_MAX); n++) {
        if (f[n].bytes > NIC_FRAME_MAX)
            the.stats.errors++;
        else
            queue(&f[n]);
    }
    if (the.tx_next == before) return n;
    nic_barrier();
    set(REG_TDT, the.tx_next % NIC_RING);
    return n;
}

/* igc_get_speed_and_duplex_copper_generic. */
static uint32_t igc_mbps(void *self)
{
    (void)self;
    uint32_t status = get(REG_STATUS);
    if (!(status & STATUS_LU)) return 0;
    if (status & STATUS_SPEED_1000) return status & STATUS_SPEED_2500 ? 2500 : 1000;
    return status & STATUS_SPEED_100 ? 100 : 10;
}

static void igc_stats(void *self, struct nic_stats *out)
{
    (void)self;
    the.stats.dropped += get(REG_MPC);
    the.stats.dropped += get(REG_RQDPC);
    the.stats.errors += get(REG_CRCERRS);
    the.stats.errors += get(REG_RUC);
    the.stats.errors += get(REG_RFC);
    the.stats.errors += get(REG_ROC);
    the.stats.errors += get(REG_RJC);
    *out = the.stats;
}

/* I210, 4.5: the software initialization sequence. */
static int igc_open(struct nic *out, const struct nic_device *d, const char **why)
{
    struct nic_stats none;
    memset(&the, 0, sizeof the);
    the.d = *d;
    *out = (struct nic){
        .mtu = NIC_MTU, .recv = igc_recv, .send = igc_send, .link_mbps = igc_mbps, .stats = igc_stats};
    if (reset(why)) return -1;
    uint32_t low = get(REG_RAL0), high = get(REG_RAH0);
    for (uint32_t i = 0; i < 6; i++) out->mac[i] = (uint8_t)(i < 4 ? low >> 8 * i : high >> 8 * (i - 4));
    *why = "no MAC address";
    if (!(high & (uint32_t)RAH_AV) || low == UINT32_MAX || out->mac[0] & 1) return -1;
    if (start_phy(why) || make_receive_ring(why) || make_transmit_ring(why)) return -1;
    start();
    igc_stats(NULL, &none); // what was counted before is not ours
    the.stats = (struct nic_stats){0};
    return 0;
}

const struct nic_driver igc_driver = {"igc",
                                      IGC_VENDOR,
                                      {DEVICE_I225_LM, DEVICE_I225_V, DEVICE_I220_V, DEVICE_I225_I,
                                       DEVICE_I225_IT, DEVICE_I225_K, DEVICE_I225_K2, DEVICE_I225_LMVP,
                                       DEVICE_I226_K, DEVICE_I226_LMVP, DEVICE_I226_LM, DEVICE_I226_V,
                                       DEVICE_I226_IT, DEVICE_I221_V, 0},
                                      igc_open};
