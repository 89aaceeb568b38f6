/* igc_model.c: the I225 and I226 as igc of Linux (drivers/net/ethernet/intel/igc) and OpenBSD
 * (sys/dev/pci/igc_*.c) use them, and where these say nothing as the data sheet of the I210 has it ("I210"
 * with its section), whose MAC the I225 continues. Not modelled, because a polled driver without offloads
 * does not see it: interrupts, checksums, the packet buffer behind full rings (SRRCTL.DROP_EN is required),
 * DMA coalescing. */
#include <stdlib.h>
#include <string.h>

#include "duck/nic/igc_regs.h"
#include "tests/nic/igc_sources.h"
#include "tests/nic/model.h"

enum {
    BUSY_READS = 2,
    RESET_READS = 3,
    FRAME_LEAST = 64,
    FRAME_MOST = 1518, // without RCTL.LPE
    JUMBO_MOST = 9728, // I210, 8.12.11 (DTXMXPKTSZ)
    COUNTED_FROM = 25,
    FCS_BYTES = 4,
    PSP_MIN = 17,
    QUEUE_MOST = 4096
};

static struct {
    struct nic_bus bus;
    uint32_t reg[IGC_BAR_BYTES / 4];
    uint8_t mac[6];
    int without_address; // a blank NVM
    enum nic_fault fault;
    uint32_t resetting, mdic_busy, rx_enabling, tx_enabling, stopping; // reads until it is done
    uint32_t phy[32], multi_gigabit, mmd_register;
    int smbi;           // the semaphore among drivers
    uint32_t held_back; // receive descriptors that are not written back yet
    struct {
        uint32_t at;
        struct igc_rx rx;
    } back[32];
    struct igc_tx seen[QUEUE_MOST]; // as they were when the tail was moved over them
    uint32_t sum[QUEUE_MOST], seen_to;
    uint32_t doorbells;
    int eee; // the line may sleep: as negotiated last
} the;

static _Noreturn void reject(enum igc_source by, const char *what)
{
    the.bus.reject(the.bus.self, what, &igc_sources[by]);
    abort();
}

static uint32_t *at(uint32_t offset)
{
    return &the.reg[offset / 4];
}

static uint8_t *dma(uint64_t address, uint32_t bytes, const char *otherwise)
{
    uint8_t *p = the.bus.dma(the.bus.self, address, bytes);
    if (!p) reject(BY_MEMORY, otherwise);
    return p;
}

/* ---- power-on and reset ---- */

/* CTRL.DEV_RST: everything but link, PHY, semaphores and the address, which is read from the NVM again
 * (EECD.AUTO_RD: igc_get_auto_rd_done_generic). The multicast table is undefined (I210, 4.5.9: software
 * zeroes it). */
static void clear_registers(void)
{
    uint32_t status = *at(REG_STATUS) | STATUS_MASTER_ENABLE, swsm = *at(REG_SWSM),
             sync = *at(REG_SW_FW_SYNC);
    memset(the.reg, 0, sizeof the.reg);
    *at(REG_STATUS) = status;
    *at(REG_SWSM) = swsm;
    *at(REG_SW_FW_SYNC) = sync;
    *at(REG_PHPM) = PHPM_GO_LINK_DOWN;
    *at(REG_IPCNFG) = IPCNFG_EEE; // I210, 3.7.7.5 and 8.27.1: offered by default
    *at(REG_EEER) = EEER_LPI;
    *at(REG_RXCSUM) = 0x300;
    *at(REG_RXDCTL) = *at(REG_TXDCTL) =
        QUEUE_ENABLE | 1 << QUEUE_WRITE_BACK_SHIFT; // I210: queue 0 starts enabled
    for (uint32_t i = 0; i < MTA_WORDS; i++) *at(REG_MTA + 4 * i) = 0xdeadbeef;
    if (!the.without_address) {
        memcpy(at(REG_RAL0), the.mac, 4);
        *at(REG_RAH0) = (uint32_t)RAH_AV | (uint32_t)the.mac[5] << 8 | the.mac[4];
    }
    the.seen_to = the.held_back = the.stopping = 0;
}

/* A boot loader left it receiving into memory that is somebody else's by now, kept the semaphore (the drivers
 * know such firmware: igc_get_hw_semaphore_i225), and put the PHY to sleep. */
static void power_on(const struct nic_bus *bus, uint32_t variant, const uint8_t mac[6])
{
    memset(&the, 0, sizeof the);
    the.bus = *bus;
    the.without_address = variant == 2;
    the.eee = 1;
    memcpy(the.mac, mac, 6);
    clear_registers();
    *at(REG_STATUS) |= STATUS_LU | STATUS_SPEED_1000 | STATUS_SPEED_2500 | 1;
    *at(REG_RDBAL) = 0x00abc000;
    *at(REG_RDLEN) = 4096;
    *at(REG_RCTL) = RCTL_EN | RCTL_BAM;
    *at(REG_TDBAL) = 0x00abd000;
    *at(REG_TDLEN) = 4096;
    *at(REG_TCTL) = TCTL_EN;
    *at(REG_ICR) = 4;
    *at(REG_RQDPC) = 99;
    *at(REG_CRCERRS) = 99;
    *at(REG_WUS) = WUFC_MAGIC; // woken like that
    the.smbi = 1;
    the.phy[PHY_BMCR] = BMCR_POWER_DOWN;
    if (variant == 1) { // this one has booted the machine, and is as it should be, but for its line
        the.phy[PHY_BMCR] = BMCR_NEGOTIATE;
        the.multi_gigabit = ADVERTISE_2500;
    }
}

/* ---- PHY: MDIC (igc_phy.c), registers 13 and 14 (IEEE 802.3, annex 22D) ---- */

static void write_mdic(uint32_t value)
{
    if (!(*at(REG_SW_FW_SYNC) & SYNC_PHY))
        reject(BY_PHY_SEMAPHORE, "the PHY is used without its semaphore"); // igc_acquire_phy_base
    if (the.mdic_busy) reject(BY_MDIC, "PHY: a command before the last one was done");
    *at(REG_MDIC) = value & ~(uint32_t)MDIC_READY;
    the.mdic_busy = BUSY_READS;
}

static void finish_mdic(void)
{
    uint32_t command = *at(REG_MDIC), reg = (command & MDIC_REG_MASK) >> MDIC_REG_SHIFT,
             data = command & 0xffff;
    uint32_t *target = &the.phy[reg];
    if (reg == PHY_MMD_DATA && !(the.phy[PHY_MMD_CONTROL] & MMD_DATA)) target = &the.mmd_register;
    if (reg == PHY_MMD_DATA && the.phy[PHY_MMD_CONTROL] == (MMD_DATA | MMD_NEGOTIATION) &&
        the.mmd_register == MULTI_GIGABIT)
        target = &the.multi_gigabit;
    if (command & MDIC_WRITE) *target = data;
    // IEEE 802.3, 28C: what is offered counts when links are negotiated; igc_set_eee_i225: by IPCNFG
    if (command & MDIC_WRITE && reg == PHY_BMCR && data & BMCR_RESTART)
        the.eee = (*at(REG_IPCNFG) & IPCNFG_EEE) != 0;
    *at(REG_MDIC) = (command & ~0xffffu) | (*target & 0xffff) | MDIC_READY;
}

/* ---- registers ---- */

/* Reading clears: I210, 8.18; igc_clear_hw_cntrs_base. */
static int is_statistic(uint32_t offset)
{
    return (offset >= 0x4000 && offset < 0x4200) || offset == REG_RQDPC;
}

static uint64_t model_read(uint32_t offset, uint32_t bytes)
{
    if (the.fault == FAULT_DEAD) return UINT64_MAX;
    if (bytes != 4 || offset % 4 || offset >= IGC_BAR_BYTES)
        reject(BY_ACCESS, "read: width or alignment"); // igc rd32, wr32
    if (the.resetting) {
        if (offset != REG_CTRL && offset != REG_EECD)
            reject(BY_RESET, "a register was read during the reset");
        if (the.fault != FAULT_RESET_HANGS && --the.resetting == 0) {
            *at(REG_CTRL) = 0;
            *at(REG_EECD) = EECD_AUTO_RD;
        }
    }
    uint32_t value = *at(offset);
    switch (offset) {
    case REG_STATUS: // I210, 5.2.3.3: clear when the last DMA is over
        if (*at(REG_CTRL) & CTRL_MASTER_DISABLE && the.stopping && --the.stopping == 0)
            *at(REG_STATUS) &= ~(uint32_t)STATUS_MASTER_ENABLE;
        return *at(REG_STATUS);
    case REG_ICR: // reading clears: I210, 8.8; igc_reset_hw_base ends with it
        *at(REG_ICR) = 0;
        return value;
    case REG_MDIC:
        if (the.mdic_busy && --the.mdic_busy == 0) finish_mdic();
        return *at(REG_MDIC);
    case REG_SWSM: // SMBI is set by reading: I210, 8.7.1; igc_get_hw_semaphore_i225
        value = (value & ~(uint32_t)SWSM_SMBI) | (the.smbi ? SWSM_SMBI : 0);
        the.smbi = 1;
        return value;
    case REG_RXDCTL: // I210, 4.5.9: the bit is polled until the queue runs
        if (the.rx_enabling && --the.rx_enabling == 0) *at(REG_RXDCTL) |= QUEUE_ENABLE;
        return *at(REG_RXDCTL);
    case REG_TXDCTL:
        if (the.tx_enabling && --the.tx_enabling == 0) *at(REG_TXDCTL) |= QUEUE_ENABLE;
        return *at(REG_TXDCTL);
    default:
        if (is_statistic(offset)) *at(offset) = 0;
        return value;
    }
}

static uint64_t ring(uint32_t low)
{
    return (uint64_t)*at(low + 4) << 32 | *at(low);
}

static void start_reset(void)
{
    if (*at(REG_STATUS) & STATUS_MASTER_ENABLE)
        reject(BY_MASTER_OFF, "reset while the device may be doing DMA"); // I210, 5.2.3.3
    if (*at(REG_RCTL) & RCTL_EN || *at(REG_TCTL) & TCTL_EN)               // igc_reset_hw_i225
        reject(BY_UNITS_OFF, "reset while receiver or transmitter runs");
    clear_registers();
    *at(REG_CTRL) = CTRL_DEV_RST;
    the.resetting = RESET_READS;
}

static void check_queue(uint32_t low, const char *otherwise)
{
    uint32_t bytes = *at(low + 8);
    if (bytes == 0 || bytes > QUEUE_MOST * 16) reject(BY_RING_KNOWN, "a queue is enabled without a ring");
    dma(ring(low), bytes, otherwise);
}

/* I210, 8.10.4 to 8.10.6 and 8.12: base and length are written while the queue is off, and 128-byte
 * aligned; 4.5.9: the enable bit reads 1 only when the queue runs. */
static void write_queue_control(uint32_t offset, uint32_t value)
{
    uint32_t *enabling = offset == REG_RXDCTL ? &the.rx_enabling : &the.tx_enabling;
    *at(offset) = value & ~(uint32_t)QUEUE_ENABLE;
    *enabling = 0;
    if (!(value & QUEUE_ENABLE)) return;
    if (offset == REG_RXDCTL) {
        check_queue(REG_RDBAL, "the receive ring is not in the driver's memory");
        uint32_t srrctl = *at(REG_SRRCTL);
        if (!(srrctl & SRRCTL_ONE_BUFFER) || (srrctl & 0x7f) == 0)
            reject(BY_BUFFER_TYPE, "receive queue: buffers have no size or type");
        if (!(srrctl & (uint32_t)SRRCTL_DROP))
            reject(BY_NO_BUFFERING, "receive queue: not modelled without SRRCTL.DROP_EN");
    } else {
        check_queue(REG_TDBAL, "the transmit ring is not in the driver's memory");
    }
    *enabling = BUSY_READS;
}

static void check_queue_off(uint32_t offset, uint32_t value)
{
    int receives = offset < REG_TDBAL;
    uint32_t which = offset & 0x1c, enabling = receives ? the.rx_enabling : the.tx_enabling;
    if (*at(receives ? REG_RXDCTL : REG_TXDCTL) & QUEUE_ENABLE || enabling)
        reject(BY_RINGS_STILL, "a ring is moved while its queue is enabled");
    if ((which == 0 || which == 8) && value % RING_ALIGN)
        reject(BY_RING_ALIGN, "a ring is not 128-byte aligned");
}

/* Frames that are handed over with a new tail: as the drivers make them, whole, without offloads. */
static void take_tail(uint32_t value)
{
    uint32_t count = *at(REG_TDLEN) / 16;
    if (!(*at(REG_TXDCTL) & QUEUE_ENABLE))
        reject(BY_TX_TAIL, "transmit tail moved before the queue is enabled"); // I210, 4.5.10
    if (!(*at(REG_TCTL) & TCTL_EN))
        reject(BY_TRANSMITTER, "transmit tail moved before the transmitter is enabled");
    if (value >= count) reject(BY_TAIL, "transmit tail beyond the ring");
    if ((value + count - *at(REG_TDH)) % count < (the.seen_to + count - *at(REG_TDH)) % count)
        reject(BY_TAIL, "transmit tail moved backwards, or around the head");
    the.doorbells++;
    for (; the.seen_to != value; the.seen_to = (the.seen_to + 1) % count) {
        struct igc_tx *t = (struct igc_tx *)(void *)dma(ring(REG_TDBAL), count * 16, "no ring") + the.seen_to;
        uint32_t bytes = t->command & TX_LENGTH;
        if ((t->command & ~(uint32_t)TX_LENGTH) != (TX_DATA | TX_ADVANCED | TX_EOP | TX_IFCS | TX_RS))
            reject(BY_WHOLE_FRAMES, "transmit descriptor: no whole frame, no report, or an offload");
        if (t->status != bytes << TX_PAYLOAD_SHIFT)
            reject(BY_PAYLOAD, "transmit descriptor: another length of the frame, or DD");
        if (bytes < PSP_MIN || !(*at(REG_TCTL) & TCTL_PSP))
            reject(BY_PADDING, "a frame that the device does not pad"); // igc_xmit_frame
        if (bytes > JUMBO_MOST) reject(BY_LONGEST, "transmit descriptor: a frame longer than 9728 bytes");
        the.sum[the.seen_to] =
            frame_sum(dma(t->address, bytes, "a frame is sent from memory that is not the driver's"), bytes);
        the.seen[the.seen_to] = *t;
    }
}

static void write_receive_tail(uint32_t value)
{
    if (!(*at(REG_RXDCTL) & QUEUE_ENABLE)) // I210, 8.10.8: it is ignored
        reject(BY_RX_TAIL, "receive tail moved before the queue is enabled");
    if (value >= *at(REG_RDLEN) / 16) reject(BY_TAIL, "receive tail beyond the ring");
    *at(REG_RDT) = value;
}

/* igc_get_hw_semaphore_i225: SWESMBI against the firmware comes after SMBI; SW_FW_SYNC is written with both.
 */
static void write_semaphore(uint32_t value)
{
    if (!(value & SWSM_SMBI)) the.smbi = 0;
    *at(REG_SWSM) = value & SWSM_SWESMBI;
}

static void model_write(uint32_t offset, uint32_t bytes, uint64_t value64)
{
    uint32_t value = (uint32_t)value64;
    if (the.fault == FAULT_DEAD) return;
    if (bytes != 4 || offset % 4 || offset >= IGC_BAR_BYTES)
        reject(BY_ACCESS, "write: width or alignment"); // igc rd32, wr32
    if (the.resetting) reject(BY_RESET, "a register was written during the reset");
    switch (offset) {
    case REG_CTRL:
        if (value & CTRL_DEV_RST) {
            start_reset();
            break;
        }
        if (value & CTRL_MASTER_DISABLE && !(*at(REG_CTRL) & CTRL_MASTER_DISABLE)) the.stopping = BUSY_READS;
        *at(REG_CTRL) = value;
        break;
    case REG_STATUS:
    case REG_EECD:
        break;
    case REG_MDIC:
        write_mdic(value);
        break;
    case REG_SWSM:
        write_semaphore(value);
        break;
    case REG_SW_FW_SYNC:
        if (!(*at(REG_SWSM) & SWSM_SWESMBI))
            reject(BY_SYNC, "SW_FW_SYNC is written without the semaphore against the firmware");
        *at(offset) = value;
        break;
    case REG_RDBAL:
    case REG_RDBAH:
    case REG_RDLEN:
    case REG_RDH:
    case REG_TDBAL:
    case REG_TDBAH:
    case REG_TDLEN:
    case REG_TDH:
        check_queue_off(offset, value);
        *at(offset) = value;
        break;
    case REG_RDT:
        if (value == 0 && !(*at(REG_RXDCTL) & QUEUE_ENABLE))
            break; // both drivers write 0 before it is enabled
        write_receive_tail(value);
        break;
    case REG_TDT:
        if (value == 0 && !(*at(REG_TXDCTL) & QUEUE_ENABLE)) break;
        take_tail(value);
        *at(REG_TDT) = value;
        break;
    case REG_RXDCTL:
    case REG_TXDCTL:
        write_queue_control(offset, value);
        break;
    case REG_WUS: // I210, 5.6.2: written ones are cleared
        *at(offset) &= ~value;
        break;
    case REG_RCTL: // without a queue: frames that wake up only pass the filters (__igc_shutdown)
        if (value & RCTL_EN && !(*at(REG_RXDCTL) & QUEUE_ENABLE) && !*at(REG_WUFC))
            reject(BY_RX_LAST, "receiver enabled before its queue");
        for (uint32_t i = 0; value & RCTL_EN && i < MTA_WORDS; i++)
            if (*at(REG_MTA + 4 * i))
                reject(BY_MULTICAST, "receiver enabled with a multicast table that nobody has zeroed");
        *at(offset) = value;
        break;
    case REG_TCTL:
        if (value & TCTL_EN && !(*at(REG_TXDCTL) & QUEUE_ENABLE))
            reject(BY_TX_LAST, "transmitter enabled before its queue");
        *at(offset) = value;
        break;
    default:
        if (!is_statistic(offset)) *at(offset) = value;
    }
}

/* ---- frames ---- */

/* CTRL.SLU, PHPM.GO_LINKD: igc_setup_copper_link_i225; asleep until igc_power_up_phy_copper. */
static int is_up(void)
{
    return *at(REG_STATUS) & STATUS_LU && *at(REG_CTRL) & CTRL_SET_LINK_UP &&
           !(*at(REG_PHPM) & PHPM_GO_LINK_DOWN) && !(the.phy[PHY_BMCR] & BMCR_POWER_DOWN);
}

/* I210, 7.1.1: RCTL.BAM, and the address of RAL, RAH if RAH.AV is set (igc_rar_set). */
static int is_accepted(const uint8_t *frame)
{
    static const uint8_t broadcast[6] = {255, 255, 255, 255, 255, 255};
    if (memcmp(frame, broadcast, 6) == 0) return (*at(REG_RCTL) & RCTL_BAM) != 0;
    return *at(REG_RAH0) & (uint32_t)RAH_AV && memcmp(frame, at(REG_RAL0), 6) == 0;
}

/* Which counter has a frame that stays outside; 0: none has. I210, 8.18.35 to 38 and 7.1.1.4 (without
 * RCTL.LPE): sizes with the FCS, four more with a VLAN tag; frames for others and very short ones are not
 * counted. */
static uint32_t counter_of(const uint8_t *frame, uint32_t bytes, enum nic_arrival how)
{
    uint32_t whole = bytes + FCS_BYTES,
             most = frame[12] == 0x81 && frame[13] == 0 ? FRAME_MOST + 4 : FRAME_MOST;
    if (*at(REG_RCTL) & RCTL_LPE) most = *at(REG_RLPML); // igc_set_rx_mode; I210, 8.10.14
    int bad = how == ARRIVES_WITH_BAD_CRC;
    if (whole < FRAME_LEAST) return bad ? REG_RFC : REG_RUC;
    if (whole > most) return bad ? REG_RJC : REG_ROC;
    return bad ? REG_CRCERRS : 0;
}

/* I210, 8.10.9: descriptors are written back when WTHRESH of them are done. */
static void write_back(void)
{
    uint32_t most = *at(REG_RXDCTL) >> QUEUE_WRITE_BACK_SHIFT & QUEUE_WRITE_BACK_MASK;
    if (the.held_back < most) return;
    for (uint32_t i = 0; i < the.held_back; i++) {
        struct igc_rx *r =
            (struct igc_rx *)(void *)dma(ring(REG_RDBAL), *at(REG_RDLEN), "no ring") + the.back[i].at;
        r->address = the.back[i].rx.address;
        r->length = the.back[i].rx.length;
        r->vlan = 0;
        __atomic_store_n(&r->status, the.back[i].rx.status, __ATOMIC_RELEASE);
    }
    the.held_back = 0;
}

static int model_arrive(const uint8_t *frame, uint32_t bytes, enum nic_arrival how)
{
    uint32_t count = *at(REG_RDLEN) / 16, *head = at(REG_RDH), counter;
    if (!(*at(REG_RCTL) & RCTL_EN) || the.resetting || !is_up() || *at(REG_CTRL) & CTRL_MASTER_DISABLE)
        return 0;
    if (!(*at(REG_RXDCTL) & QUEUE_ENABLE)) return 0;
    if (bytes + FCS_BYTES < COUNTED_FROM || !is_accepted(frame)) return 0;
    if ((counter = counter_of(frame, bytes, how))) {
        (*at(counter))++;
        return 0;
    }
    if (*head == *at(REG_RDT)) { // I210, 7.1.1 (SRRCTL.Drop_En); igc_regs.h (RQDPC)
        (*at(REG_RQDPC))++;
        return 0;
    }
    struct igc_rx *r = (struct igc_rx *)(void *)dma(ring(REG_RDBAL), *at(REG_RDLEN), "no ring") + *head;
    uint32_t size = (*at(REG_SRRCTL) & 0x7f) * 1024;
    if (r->status || r->length || r->vlan)
        reject(BY_REMAINS, "receive descriptor: not as software writes it (a header address)");
    uint8_t *to = dma(r->address, size, "a frame is received into memory that is not the driver's");
    uint32_t whole = *at(REG_RCTL) & RCTL_SECRC ? bytes : bytes + FCS_BYTES; // strips the FCS: I210, 8.10.1
    for (uint32_t i = 0; i < whole; i++) to[i] = i < bytes ? frame[i] : 0xfc;
    the.back[the.held_back].at = *head;
    the.back[the.held_back].rx.address = 0xaaaaaaaa55555555; // hash and packet type lie where the address was
    the.back[the.held_back].rx.length = (uint16_t)whole;
    the.back[the.held_back].rx.status =
        RX_DD | RX_EOP | (how == ARRIVES_TOO_LATE ? (uint32_t)RX_ERROR : 0); // igc_cleanup_headers
    the.held_back++;
    *head = (*head + 1) % count;
    write_back();
    return 1;
}

/* DD is written back over each descriptor with RS: I210, 7.2.2.4; igc_clean_tx_irq looks at nothing else. */
static uint32_t model_transmit(uint32_t most)
{
    uint32_t n = 0, count = *at(REG_TDLEN) / 16, *head = at(REG_TDH);
    if (!(*at(REG_TCTL) & TCTL_EN) || !is_up()) return 0;
    for (; n < most && *head != the.seen_to; n++, *head = (*head + 1) % count) {
        struct igc_tx *t = (struct igc_tx *)(void *)dma(ring(REG_TDBAL), count * 16, "no ring") + *head;
        uint32_t bytes = t->command & TX_LENGTH;
        const uint8_t *frame = the.bus.dma(the.bus.self, t->address, bytes);
        if (memcmp(t, &the.seen[*head], sizeof *t) != 0)
            reject(BY_OWNER, "a transmit descriptor was changed while it was the device's");
        if (!frame || frame_sum(frame, bytes) != the.sum[*head])
            reject(BY_OWNER, "a frame was changed while its descriptor was the device's");
        the.bus.sent(the.bus.self, frame, bytes);
        t->address = 0;
        t->command = 0;
        __atomic_store_n(&t->status, TX_DD, __ATOMIC_RELEASE);
    }
    return n;
}

/* igc_get_speed_and_duplex_copper. */
static void set_link(uint32_t mbps)
{
    static const uint32_t all = STATUS_LU | STATUS_SPEED_100 | STATUS_SPEED_1000 | STATUS_SPEED_2500 | 1;
    uint32_t speed = mbps == 2500   ? STATUS_SPEED_1000 | STATUS_SPEED_2500
                     : mbps == 1000 ? STATUS_SPEED_1000
                     : mbps == 100  ? STATUS_SPEED_100
                                    : 0;
    *at(REG_STATUS) = (*at(REG_STATUS) & ~all) | (mbps ? STATUS_LU | speed | 1 : 0);
}

static void set_fault(enum nic_fault fault)
{
    the.fault = fault;
}

static uint32_t doorbells(void)
{
    return the.doorbells;
}

static int is_running(void)
{
    return *at(REG_RCTL) & RCTL_EN || *at(REG_TCTL) & TCTL_EN;
}

/* igc_set_eee_i225; I210, 3.7.7.5: what the PHY offers, and the MAC's bits. */
static int line_sleeps(void)
{
    return the.eee || *at(REG_EEER) & EEER_LPI;
}

/* Asleep, with the event enabled (PCI): I210, 5.6.2: first the address filter, then those of WUFC;
 * __igc_shutdown (WUC, WUFC, CTRL.ADVD3WUC, and DMA has ended). A pending status (WUS) must have been
 * cleared. */
static int wakes(const uint8_t *frame, uint32_t bytes)
{
    if (!(*at(REG_WUC) & WUC_PME_ENABLE) || !(*at(REG_CTRL) & CTRL_WAKE_FROM_D3COLD) || *at(REG_WUS))
        return 0;
    if (!(*at(REG_CTRL) & CTRL_MASTER_DISABLE) || *at(REG_STATUS) & STATUS_MASTER_ENABLE) return 0;
    if (!(*at(REG_RCTL) & RCTL_EN) || !is_up() || bytes < 6 || !is_accepted(frame)) return 0;
    return *at(REG_WUFC) & WUFC_MAGIC && is_magic(frame, bytes, the.mac);
}

const struct nic_model igc_model = {
    .name = "igc",
    .vendor = IGC_VENDOR,
    .device = DEVICE_I226_V,
    .bar = IGC_BAR,
    .bar_bytes = IGC_BAR_BYTES,
    .variants = 2, // of state, the number is one; the next has a blank NVM
    .power_on = power_on,
    .read = model_read,
    .write = model_write,
    .arrive = model_arrive,
    .transmit = model_transmit,
    .set_link = set_link,
    .set_fault = set_fault,
    .doorbells = doorbells,
    .is_running = is_running,
    .line_sleeps = line_sleeps,
    .wakes = wakes,
    .sources = igc_sources,
    .source_count = BY_COUNT,
};
