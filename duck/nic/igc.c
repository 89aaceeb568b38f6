/* igc.c: Intel I225 and I226 (2.5 Gb/s): one ring each way of advanced descriptors, no offloads, polled. */
#include <string.h>

#include "duck/nic/igc_regs.h"
#include "duck/nic/nic.h"
#include "duck/nic/ring.h"

enum {
    FCS_BYTES = 4,
    MILLISECOND = 1000000,
    MUST_NS = 1000 * MILLISECOND, // what does not come in a second does not come
    MAY_NS = 100 * MILLISECOND,   // what is asked for, but not waited for at any price
};

static struct {
    struct nic_device d;
    volatile struct igc_rx *rx; // (NIC_RING)
    volatile struct igc_tx *tx; // (NIC_RING)
    struct ring ring;
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

static int wait_for(uint32_t reg, uint32_t mask, uint32_t value, uint64_t ns)
{
    return nic_wait_for(&the.d, (struct nic_register){IGC_BAR, reg, 4}, mask, value, ns);
}

static void rest(uint64_t ns)
{
    nic_rest(&the.d, ns);
}

/* Nobody's frames go in or out any more, and no DMA is going on (I210, 5.2.3.3); if it does not end, a reset
 * ends it. */
static void stop(void)
{
    change(REG_CTRL, 0, CTRL_MASTER_DISABLE);
    wait_for(REG_STATUS, STATUS_MASTER_ENABLE, 0, MAY_NS);
    set(REG_IMC, UINT32_MAX);
    set(REG_EIMC, UINT32_MAX);
    set(REG_RCTL, 0);
    set(REG_TCTL, TCTL_PSP);
    get(REG_STATUS); // commits what was written
}

/* ---- reset ---- */

/* A boot loader may have left everything running: DMA is stopped before the reset, and the device is left in
 * peace for a while after it. igc_reset_hw_base. */
static int reset(const char **why)
{
    enum { QUIET_NS = 10 * MILLISECOND, SILENCE_NS = 2 * MILLISECOND };
    stop();
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

/* A line that sleeps between frames (energy-efficient Ethernet) costs latency. igc_set_eee_i225. Returns: it
 * was offered so far. */
static int end_sleep_of_line(void)
{
    int offered = (get(REG_IPCNFG) & IPCNFG_EEE) != 0;
    change(REG_IPCNFG, IPCNFG_EEE, 0);
    change(REG_EEER, EEER_LPI, 0);
    return offered;
}

/* Wakes the PHY and lets it offer 2.5 Gb/s. A link that is as it should be is left alone: negotiating again
 * takes seconds. igc_power_up_phy_copper, igc_phy_setup_autoneg, igc_copper_link_autoneg. */
static int set_up_phy(void)
{
    uint32_t control, advertised;
    int eee = end_sleep_of_line();
    if (phy_get(PHY_BMCR, &control)) return -1;
    int asleep = control & BMCR_POWER_DOWN || !(control & BMCR_NEGOTIATE);
    if (asleep && phy_set(PHY_BMCR, BMCR_NEGOTIATE)) return -1;
    if (point_to(MMD_NEGOTIATION, MULTI_GIGABIT) || phy_get(PHY_MMD_DATA, &advertised)) return -1;
    int offered = (advertised & ADVERTISE_2500) != 0;
    if (!offered && phy_set(PHY_MMD_DATA, advertised | ADVERTISE_2500)) return -1;
    if (phy_set(PHY_MMD_CONTROL, 0)) return -1;
    return asleep || eee || !offered ? phy_set(PHY_BMCR, BMCR_NEGOTIATE | BMCR_RESTART) : 0;
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

/* A descriptor as software writes it; nothing of what the device wrote back remains. */
static void arm(uint32_t i)
{
    the.rx[i].address = ring_rx_address(&the.ring, i);
    the.rx[i].status = 0;
    the.rx[i].length = the.rx[i].vlan = 0;
}

static void armed(uint32_t tail)
{
    set(REG_RDT, tail);
}

static uint32_t look(uint32_t i, uint32_t *bytes)
{
    uint32_t status = the.rx[i].status;
    if (!(status & RX_DD)) return RING_EMPTY;
    __atomic_thread_fence(__ATOMIC_ACQUIRE); // the rest of the descriptor after its DD
    *bytes = the.rx[i].length;
    return RING_THERE | (status & RX_EOP ? RING_LAST : 0) | (status & (uint32_t)RX_ERROR ? RING_BAD : 0);
}

static void queue(uint32_t i, uint32_t bytes)
{
    the.tx[i].address = ring_tx_address(&the.ring, i);
    the.tx[i].command = TX_DATA | TX_ADVANCED | TX_EOP | TX_IFCS | TX_RS | bytes;
    the.tx[i].status = bytes << TX_PAYLOAD_SHIFT;
}

static void ring_doorbell(uint32_t tail)
{
    set(REG_TDT, tail);
}

static int is_sent(uint32_t i)
{
    return (the.tx[i].status & TX_DD) != 0;
}

static const struct ring_ops ring_ops = {.arm = arm,
                                         .armed = armed,
                                         .look = look,
                                         .queue = queue,
                                         .doorbell = ring_doorbell,
                                         .is_sent = is_sent,
                                         .rx_bytes = NIC_BUFFER,
                                         .tx_least = TX_FRAME_MIN,
                                         .tx_most = NIC_RING - 1}; // head == tail means: none

static void end_queues(void)
{
    set(REG_RXDCTL, 0);
    set(REG_TXDCTL, 0);
}

static void point_ring(uint32_t low, uint64_t address)
{
    set(low, (uint32_t)address);
    set(low + (REG_RDBAH - REG_RDBAL), (uint32_t)(address >> 32));
    set(low + (REG_RDLEN - REG_RDBAL), NIC_RING * sizeof *the.rx);
    set(low + (REG_RDH - REG_RDBAL), 0);
    set(low + (REG_RDT - REG_RDBAL), 0);
}

/* I210, 4.5.9 and 4.5.10: what is set while the queues are off. */
static int make_rings(const char **why)
{
    uint64_t rx, tx;
    the.rx = the.d.memory(the.d.self, NIC_RING * sizeof *the.rx, &rx);
    the.tx = the.d.memory(the.d.self, NIC_RING * sizeof *the.tx, &tx);
    *why = "no memory for rings";
    if (!the.rx || !the.tx || ring_make(&the.ring, &ring_ops, &the.d, why)) return -1;
    for (uint32_t i = 0; i < MTA_WORDS; i++) set(REG_MTA + 4 * i, 0);
    set(REG_MRQC, 0);
    set(REG_RXCSUM, 0);
    end_queues(); // a boot loader's
    point_ring(REG_RDBAL, rx);
    point_ring(REG_TDBAL, tx);
    set(REG_SRRCTL, NIC_BUFFER / 1024 * SRRCTL_KILOBYTES | SRRCTL_ONE_BUFFER | (uint32_t)SRRCTL_DROP);
    return 0;
}

static int enable_queue(uint32_t reg)
{
    set(reg, QUEUE_THRESHOLDS | QUEUE_ENABLE);
    return wait_for(reg, QUEUE_ENABLE, QUEUE_ENABLE, MUST_NS);
}

/* I210, 4.5.9 and 4.5.10: the queues are enabled, then receiver and transmitter, then the tail is moved. */
static int start(const char **why)
{
    *why = "the receive queue does not start";
    if (enable_queue(REG_RXDCTL)) return -1;
    *why = "the transmit queue does not start";
    if (enable_queue(REG_TXDCTL)) return -1;
    change(REG_DMACR, (uint32_t)DMACR_EN, 0); // waits for more frames: latency
    set(REG_WUC, 0);
    set(REG_WUFC, 0);
    change(REG_CTRL_EXT, 0, CTRL_EXT_DRIVER_LOADED);
    set(REG_TCTL, TCTL_EN | TCTL_PSP | TCTL_CT | TCTL_RTLC);
    set(REG_RLPML, NIC_FRAME_MAX + FCS_BYTES); // longer frames stay outside
    set(REG_RCTL, RCTL_EN | RCTL_BAM | RCTL_SECRC | RCTL_LPE);
    nic_barrier();
    set(REG_RDT, NIC_RING - 1); // head == tail would mean: none
    return 0;
}

/* ---- struct nic ---- */

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
    struct nic_stats *s = &the.ring.stats;
    s->dropped += get(REG_MPC);
    s->dropped += get(REG_RQDPC);
    s->errors += get(REG_CRCERRS);
    s->errors += get(REG_RUC);
    s->errors += get(REG_RFC);
    s->errors += get(REG_ROC);
    s->errors += get(REG_RJC);
    *out = *s;
}

/* __igc_shutdown; I210, 5.6.2: what the receiver accepts passes through the filters of WUFC. The link keeps
 * its speed. */
static int igc_arm_wake(void *self)
{
    (void)self;
    stop(); // no more DMA
    end_queues();
    change(REG_CTRL, 0, CTRL_WAKE_FROM_D3COLD);
    set(REG_WUS, UINT32_MAX); // written ones are cleared
    set(REG_WUFC, WUFC_MAGIC);
    set(REG_WUC, WUC_PME_ENABLE);
    set(REG_RCTL, RCTL_EN | RCTL_BAM);
    change(REG_CTRL_EXT, CTRL_EXT_DRIVER_LOADED, 0); // igc_release_hw_control
    return get(REG_WUFC) == WUFC_MAGIC ? 0 : -1;
}

/* I210, 4.5: the software initialization sequence. */
static int igc_open(struct nic *out, const struct nic_device *d, const char **why)
{
    struct nic_stats none;
    memset(&the, 0, sizeof the);
    the.d = *d;
    *out = (struct nic){.self = &the.ring,
                        .mtu = NIC_MTU,
                        .recv = ring_recv,
                        .send = ring_send,
                        .link_mbps = igc_mbps,
                        .stats = igc_stats,
                        .arm_wake = igc_arm_wake};
    if (reset(why)) return -1;
    uint32_t low = get(REG_RAL0), high = get(REG_RAH0);
    for (uint32_t i = 0; i < 6; i++) out->mac[i] = (uint8_t)(i < 4 ? low >> 8 * i : high >> 8 * (i - 4));
    *why = "no MAC address";
    if (!(high & (uint32_t)RAH_AV) || low == UINT32_MAX || out->mac[0] & 1) return -1;
    if (start_phy(why) || make_rings(why)) return -1;
    the.d.allow_dma(the.d.self);
    if (start(why)) return -1;
    igc_stats(NULL, &none); // what was counted before is not ours
    the.ring.stats = (struct nic_stats){0};
    return 0;
}

const struct nic_driver igc_driver = {"igc",
                                      IGC_VENDOR,
                                      {DEVICE_I225_LM, DEVICE_I225_V, DEVICE_I220_V, DEVICE_I225_I,
                                       DEVICE_I225_IT, DEVICE_I225_K, DEVICE_I225_K2, DEVICE_I225_LMVP,
                                       DEVICE_I226_K, DEVICE_I226_LMVP, DEVICE_I226_LM, DEVICE_I226_V,
                                       DEVICE_I226_IT, DEVICE_I221_V, 0},
                                      igc_open};
