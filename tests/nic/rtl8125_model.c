/* rtl8125_model.c: the RTL8125A, B and D as r8169 (Linux 6.18), rge(4) (OpenBSD, FreeBSD) and the datasheet
 * of the RTL8169 (rev. 1.21, "8169") describe them. Not modelled, because nothing public says enough about
 * it: the PHY but for its power, state and 2.5 Gb/s bit; the unnamed MAC registers (they hold what is
 * written); offloads. */
#include <stdlib.h>
#include <string.h>

#include "duck/nic/rtl8125_regs.h"
#include "tests/nic/model.h"

enum { RING_MOST = 1024, BUSY_READS = 2, RESET_READS = 3, JUMBO_MOST = 9216 - 4 /* r8169 JUMBO_9K */ };

/* What accesses are rejected by. rge: of OpenBSD (if_rge.c 1.3x), where FreeBSD's is the same. */
enum source {
    BY_ACCESS,
    BY_MEMORY,
    BY_RESET,
    BY_PHY_WINDOW,
    BY_RINGS_FIRST,
    BY_RINGS_STILL,
    BY_RING_ALIGN,
    BY_RING_END,
    BY_OWNER,
    BY_ONE_QUEUE,
    BY_LOCK,
    BY_ADDRESS,
    BY_COUNTERS_ALIGN,
    BY_COUNTERS_BUSY,
    BY_COUNTERS_RECEIVER,
    BY_DOORBELL,
    BY_TRANSMITTER,
    BY_FORMAT,
    BY_WHOLE_FRAMES,
    BY_PADDING,
    BY_LONGEST,
    BY_BUFFER,
    SOURCES
};
static const struct nic_source sources[SOURCES] = {
    [BY_ACCESS] = {RULE_KEPT, "r8169 RTL_R8, RTL_R16, RTL_R32 (readb, readw, readl); rge RGE_READ_1, _2, _4"},
    [BY_MEMORY] = {RULE_OWN,
                   "no device asks whose memory it is: without an IOMMU it reads or spoils somebody's"},
    [BY_RESET] = {RULE_KEPT,
                  "r8169 rtl_hw_reset, rge_reset: ChipCmd alone is looked at until CmdReset is clear"},
    [BY_PHY_WINDOW] = {RULE_KEPT, "r8169 r8168_phy_ocp_write, r8168_phy_ocp_read (rtl_ocp_gphy_cond); "
                                  "rge_write_phy_ocp, rge_read_phy_ocp: each waits for the flag"},
    [BY_RINGS_FIRST] = {RULE_KEPT,
                        "r8169 rtl_hw_start (rtl_set_rx_tx_desc_registers, then ChipCmd); rge_init"},
    [BY_RINGS_STILL] = {RULE_KEPT,
                        "r8169 rtl_hw_start, rge_init: both after a reset, never while a unit is on"},
    [BY_RING_ALIGN] = {RULE_STATED, "r8169 rtl_open (comment): descriptors need 256 bytes alignment"},
    [BY_RING_END] = {RULE_STATED, "8169, pages 51 and 56 (EOR): the ring ends at the descriptor that has it"},
    [BY_OWNER] = {RULE_STATED, "8169, pages 51 and 56 (OWN): set, descriptor and buffer are the NIC's"},
    [BY_ONE_QUEUE] = {RULE_KEPT, "r8169 rtl_hw_start_8125_common (0x4500 and 0x4800 cleared); rge_init "
                                 "(RGE_RXQUEUE_CTRL)"},
    [BY_LOCK] = {RULE_KEPT, "r8169 rtl_unlock_config_regs around every write; rge RGE_EECMD_WRITECFG"},
    [BY_ADDRESS] = {RULE_KEPT, "r8169 rtl_rar_set, rge_set_macaddr: unlocked, MAC4 and MAC0 by 32 bits"},
    [BY_COUNTERS_ALIGN] = {RULE_STATED, "8169, 6.1 (DTCCR): 64-byte aligned"},
    [BY_COUNTERS_BUSY] = {RULE_KEPT,
                          "r8169 rtl8169_do_counters (rtl_counters_cond), rge_kstat_read: both wait; "
                          "8169, 6.1: clear when the dump is done"},
    [BY_COUNTERS_RECEIVER] = {RULE_STATED, "r8169 rtl8169_update_counters (comment): some chips dump nothing "
                                           "while the receiver is off"},
    [BY_DOORBELL] = {RULE_KEPT, "r8169 rtl8169_doorbell (TxPoll_8125, 16 bits, bit 0); rge_txstart"},
    [BY_TRANSMITTER] = {RULE_KEPT,
                        "r8169 rtl8169_up, then netif_start_queue; rge_init, then ifq_clr_oactive"},
    [BY_FORMAT] = {RULE_STATED,
                   "r8169 rtl_hw_start_8125_common (comment at 0xeb58): the new descriptor format"},
    [BY_WHOLE_FRAMES] = {RULE_OWN,
                         "the device takes pieces and offloads (8169, pages 51 to 53), but this driver "
                         "makes none: one is a mistake"},
    [BY_PADDING] = {RULE_KEPT, "r8169 rtl_quirk_packet_padto: this family is given padded frames"},
    [BY_LONGEST] = {RULE_KEPT, "r8169 rtl_jumbo_max (JUMBO_9K); rge RGE_JUMBO_FRAMELEN"},
    [BY_BUFFER] = {RULE_STATED,
                   "8169, page 56 (Buffer_Size): the room of the buffer; without one a frame would "
                   "never end"},
};

static const uint32_t revisions[] = {REVISION_A, REVISION_B, REVISION_D, REVISION_D + 1,
                                     0x6c9}; // last: RTL8127

static struct {
    struct nic_bus bus;
    uint32_t revision;
    uint8_t reg[RTL_BAR_BYTES];
    uint16_t mac[0x8000], phy[0x8000]; // registers behind the windows, by number / 2
    enum nic_fault fault;
    uint32_t resetting, phy_busy, dumping, lists; // reads until it is done
    uint32_t phy_command, mac_read;
    uint32_t rx_at, tx_at; // the device's place in the rings
    uint32_t told;         // transmit descriptors that a doorbell has shown, and that are not sent
    struct rtl8125_descriptor seen[RING_MOST]; // as they were when the doorbell was rung
    uint32_t sum[RING_MOST];                   // of their frames
    struct rtl8125_tally tally, dumped;        // dumped: as the counters were when that was asked for
    uint32_t doorbells;
    int eee; // the line may sleep: as negotiated last
} the;

static _Noreturn void reject(enum source by, const char *what)
{
    the.bus.reject(the.bus.self, what, &sources[by]);
    abort();
}

static uint32_t get(uint32_t reg, uint32_t bytes)
{
    uint32_t v = 0;
    memcpy(&v, the.reg + reg, bytes);
    return v;
}

static void put(uint32_t reg, uint32_t bytes, uint32_t value)
{
    memcpy(the.reg + reg, &value, bytes);
}

static uint8_t *dma_by(enum source by, uint64_t address, uint32_t bytes, const char *otherwise)
{
    uint8_t *p = the.bus.dma(the.bus.self, address, bytes);
    if (!p) reject(by, otherwise);
    return p;
}

static uint8_t *dma(uint64_t address, uint32_t bytes, const char *otherwise)
{
    return dma_by(BY_MEMORY, address, bytes, otherwise);
}

/* ---- power-on and reset ---- */

/* What a reset clears nobody says. Rings, enables and filters are taken as lost, since both drivers set all
 * of them again; station address, PHY and counters survive, since r8169 does not set them again. */
static void clear_registers(void)
{
    static const struct {
        uint16_t from, to;
    } lost[] = {{REG_MAR0, REG_TALLY_LOW}, {REG_TX_LOW, REG_TX_CONFIG}, {REG_RX_CONFIG, REG_CONFIG_LOCK}};
    for (uint32_t i = 0; i < sizeof lost / sizeof *lost; i++)
        memset(the.reg + lost[i].from, 0, (size_t)(lost[i].to - lost[i].from));
    put(REG_CONFIG_LOCK, 1, CONFIG_LOCKED);
    put(REG_RX_LOW, 4, 0);
    put(REG_RX_HIGH, 4, 0);
    put(REG_RX_MAX, 2, 0x05f3);
    the.rx_at = the.tx_at = the.told = 0;
}

/* Everything that a driver has to put right is wrong: rings in memory that is somebody else's by now, the
 * receiver with the management unit, the new descriptor format, several queues, the PHY asleep. */
static void power_on(const struct nic_bus *bus, uint32_t variant, const uint8_t mac[6])
{
    memset(&the, 0, sizeof the);
    the.bus = *bus;
    the.revision = revisions[variant];
    memcpy(the.reg + REG_MAC_BACKUP, mac, 6);
    put(REG_CMD, 1, CMD_TX | CMD_RX);
    put(REG_RX_CONFIG, 4, RX_ACCEPT_BROADCAST | RX_ACCEPT_MINE);
    put(REG_RX_LOW, 4, 0x00abc000);
    put(REG_TX_LOW, 4, 0x00abd000);
    put(REG_INT_MASK, 4, 0x3f);
    put(REG_MCU, 1, MCU_OUT_OF_BAND);
    put(REG_QUEUES, 2, 0x1c);
    put(REG_RSS, 4, 0x51);
    put(REG_CONFIG2, 1, CONFIG2_CLOCK_REQUEST);
    put(REG_PHY_STATUS, 2, PHY_STATUS_LINK | PHY_STATUS_2500 | 1);
    the.mac[MAC_TX_FORMAT / 2] = 1;
    the.phy[PHY_BMCR / 2] = BMCR_POWER_DOWN;
    the.phy[PHY_STATE / 2] = 2;
    if (variant == 1) { // this one has booted the machine, and is as it should be, but for its line
        the.phy[PHY_BMCR / 2] = BMCR_NEGOTIATE;
        the.phy[PHY_STATE / 2] = PHY_STATE_RUNS;
        the.phy[PHY_ADVERTISE / 2] = ADVERTISE_2500;
    }
    the.mac[MAC_EEE / 2] = MAC_EEE_BITS; // r8169 rtl8125_config_eee_mac: what an operating system leaves
    the.phy[PHY_EEE_OFFER / 2] = EEE_OFFER_100 | EEE_OFFER_1000;
    the.phy[PHY_EEE_OFFER_2500 / 2] = EEE_OFFER_2500;
    the.eee = 1;
    put(REG_CONFIG5, 1, CONFIG5_WAKE_FRAMES);
    the.tally.rx_missed = 0xfff0; // counts on where another driver stopped, and wraps around soon
    the.tally.rx_errors = 77;
}

/* ---- windows ---- */

static void write_mac_window(uint32_t value)
{
    uint32_t reg = value >> OCP_SHIFT & 0xfffe; // r8169 r8168_mac_ocp_write
    if (value & (uint32_t)OCP_FLAG) the.mac[reg / 2] = (uint16_t)value;
    the.mac_read = reg;
}

/* r8169 r8168_phy_ocp_read and _write: one command at a time, the flag says when it is done. The PHY answers
 * state 3 once it is awake (rge_set_phy_power). */
static void write_phy_window(uint32_t value)
{
    uint32_t reg = value >> OCP_SHIFT & 0xfffe;
    if (the.phy_busy) reject(BY_PHY_WINDOW, "PHY: a command before the last one was done");
    the.phy_command = value;
    the.phy_busy = BUSY_READS;
    if (!(value & (uint32_t)OCP_FLAG)) return;
    the.phy[reg / 2] = (uint16_t)value;
    if (reg != PHY_BMCR) return;
    the.phy[PHY_STATE / 2] = value & BMCR_POWER_DOWN ? 2 : PHY_STATE_RUNS;
    if (value &
        BMCR_RESTART) // IEEE 802.3, 28C and 45.2.7.13: what is offered counts when links are negotiated
        the.eee = the.phy[PHY_EEE_OFFER / 2] & (EEE_OFFER_100 | EEE_OFFER_1000) ||
                  the.phy[PHY_EEE_OFFER_2500 / 2] & EEE_OFFER_2500;
}

static uint32_t read_phy_window(void)
{
    uint32_t writes = the.phy_command & (uint32_t)OCP_FLAG;
    if (the.phy_busy && --the.phy_busy)
        return writes ? the.phy_command : the.phy_command & ~(uint32_t)OCP_FLAG;
    uint32_t reg = the.phy_command >> OCP_SHIFT & 0xfffe;
    if (writes) return the.phy_command & ~(uint32_t)OCP_FLAG;
    return the.phy_command | (uint32_t)OCP_FLAG | the.phy[reg / 2];
}

/* ---- registers ---- */

static uint64_t model_read(uint32_t offset, uint32_t bytes)
{
    if (the.fault == FAULT_DEAD) return UINT64_MAX;
    if (bytes > 4 || offset % bytes || offset + bytes > RTL_BAR_BYTES)
        reject(BY_ACCESS, "read: width or alignment");
    if (offset == REG_CMD) { // r8169 rtl_hw_reset: the bit reads 1 until the reset is over
        if (the.resetting && the.fault != FAULT_RESET_HANGS && --the.resetting == 0) put(REG_CMD, 1, 0);
        return get(REG_CMD, 1);
    }
    if (the.resetting) reject(BY_RESET, "a register was read during the reset");
    switch (offset) {
    case REG_TX_CONFIG: // r8169 rtl_init_one (xid), rge_attach (RGE_TXCFG_HWREV)
        return the.revision << REVISION_SHIFT | (get(REG_TX_CONFIG, 4) & 0x0300ffff);
    case REG_MAC_OCP:
        return the.mac[the.mac_read / 2];
    case REG_PHY_OCP:
        return read_phy_window();
    case REG_MCU: // lists are ready a while after the management unit has let go; r8169
                  // r8168g_wait_ll_share_fifo_ready
        if (!(get(REG_MCU, 1) & MCU_OUT_OF_BAND) && the.lists++ >= BUSY_READS)
            put(REG_MCU, 1, get(REG_MCU, 1) | MCU_LISTS_READY);
        return get(REG_MCU, 1) | (get(REG_MISC, 4) & MISC_RX_GATE ? MCU_FIFOS_EMPTY : 0);
    case REG_IDLE: // r8169 rtl_rxtx_empty_cond_2: B and D, after StopReq
        return get(REG_CMD, 1) & CMD_STOP ? IDLE_ALL : 0;
    case REG_TALLY_LOW: // 8169, 6.1: the command bit is clear when the dump is done
        if (the.dumping && --the.dumping == 0) {
            uint64_t at = (uint64_t)get(REG_TALLY_HIGH, 4) << 32 | (get(REG_TALLY_LOW, 4) & ~63u);
            memcpy(dma(at, sizeof the.tally, "counters dumped to memory that is not the driver's"),
                   &the.dumped, sizeof the.tally);
            put(REG_TALLY_LOW, 4, get(REG_TALLY_LOW, 4) & ~(uint32_t)TALLY_DUMP);
        }
        return get(REG_TALLY_LOW, 4);
    default:
        return get(offset, bytes);
    }
}

static uint64_t ring(uint32_t low)
{
    return (uint64_t)get(low + 4, 4) << 32 | get(low, 4);
}

/* What both drivers have done before they enable the MAC. */
static void check_before_start(uint32_t enabled)
{
    if (enabled & CMD_RX) {
        dma_by(BY_RINGS_FIRST, ring(REG_RX_LOW), sizeof(struct rtl8125_descriptor),
               "receiver enabled without a ring");
        if (get(REG_QUEUES, 2) & 0x1c || get(REG_RSS, 4)) // rge: RXQUEUE_CTRL 0x001c; r8169: both are cleared
            reject(BY_ONE_QUEUE, "receiver enabled with more than one queue");
    }
    if (enabled & CMD_TX)
        dma_by(BY_RINGS_FIRST, ring(REG_TX_LOW), sizeof(struct rtl8125_descriptor),
               "transmitter enabled without a ring");
}

static void write_command(uint32_t value)
{
    if (value & CMD_RESET) {
        clear_registers();
        put(REG_CMD, 1, CMD_RESET);
        the.resetting = RESET_READS;
        return;
    }
    check_before_start(value & ~get(REG_CMD, 1) & (CMD_RX | CMD_TX));
    put(REG_CMD, 1, value);
}

static void write_tally(uint32_t value)
{
    if (the.dumping) reject(BY_COUNTERS_BUSY, "counters: a dump was asked for before the last one was done");
    put(REG_TALLY_LOW, 4, value);
    if (!(value & TALLY_DUMP)) return;
    if (!(get(REG_CMD, 1) & CMD_RX))
        reject(BY_COUNTERS_RECEIVER, "counters: dumped while the receiver is off");
    if (value & 63 & ~(uint32_t)TALLY_DUMP)
        reject(BY_COUNTERS_ALIGN, "counters: address is not 64-byte aligned"); // 8169, 6.1
    the.dumped = the.tally;
    the.dumping = BUSY_READS;
}

/* The ring is read until a descriptor is not the device's (8169, pages 52 to 54). Frames that both drivers
 * never give to this device are rejected: unpadded ones (r8169 rtl_quirk_packet_padto), ones in several
 * pieces, offloads. */
static void doorbell(uint32_t value)
{
    if (value != TX_POLL_NOW) reject(BY_DOORBELL, "doorbell: an unknown queue");
    if (!(get(REG_CMD, 1) & CMD_TX)) reject(BY_TRANSMITTER, "doorbell before the transmitter is enabled");
    if (the.mac[MAC_TX_FORMAT / 2] & 1)
        reject(BY_FORMAT, "the transmit ring is read as 32-byte descriptors"); // r8169
    the.doorbells++;
    if (the.fault == FAULT_DOORBELL_LOST) { // r8169 rtl_tx: requests that are too close are lost
        the.fault = FAULT_NONE;
        return;
    }
    struct rtl8125_descriptor *d = NULL;
    uint32_t at = the.tx_at;
    for (uint32_t n = 0; n < RING_MOST; n++) {
        d = (struct rtl8125_descriptor *)(void *)dma_by(BY_RING_END, ring(REG_TX_LOW) + at * sizeof *d,
                                                        sizeof *d, "the transmit ring has no end");
        if (!(d->status & (uint32_t)DESCRIPTOR_OWN)) break;
        if (n >= the.told) {
            uint32_t bytes = d->status & TX_LENGTH;
            if ((d->status >> 16 & 0x3fff) != (DESCRIPTOR_FIRST | DESCRIPTOR_LAST) >> 16)
                reject(BY_WHOLE_FRAMES, "transmit descriptor: not a whole frame, or an offload");
            if (d->vlan) reject(BY_WHOLE_FRAMES, "transmit descriptor: VLAN or checksum asked for");
            if (bytes < TX_FRAME_MIN)
                reject(BY_PADDING, "transmit descriptor: a frame shorter than 60 bytes");
            if (bytes > JUMBO_MOST)
                reject(BY_LONGEST, "transmit descriptor: a frame longer than r8169 sends");
            the.sum[at] = frame_sum(
                dma(d->address, bytes, "a frame is sent from memory that is not the driver's"), bytes);
            the.seen[at] = *d;
            the.told++;
        }
        at = d->status & DESCRIPTOR_END ? 0 : at + 1;
        if (at == the.tx_at) break;
    }
}

/* r8169 rtl_hw_start, rge_init_locked: ring addresses are written while the unit is off; r8169 rtl_open,
 * RGE_ALIGN: both rings are 256-byte aligned. */
static void check_ring_write(uint32_t offset, uint32_t value)
{
    uint32_t unit = offset < REG_RX_LOW ? CMD_TX : CMD_RX;
    if (get(REG_CMD, 1) & unit) reject(BY_RINGS_STILL, "a ring is moved while the device uses it");
    if ((offset == REG_TX_LOW || offset == REG_RX_LOW) && value % RING_ALIGN)
        reject(BY_RING_ALIGN, "a ring is not 256-byte aligned");
}

static void model_write(uint32_t offset, uint32_t bytes, uint64_t value64)
{
    uint32_t value = (uint32_t)value64;
    if (the.fault == FAULT_DEAD) return;
    if (bytes > 4 || offset % bytes || offset + bytes > RTL_BAR_BYTES)
        reject(BY_ACCESS, "write: width or alignment");
    if (the.resetting) reject(BY_RESET, "a register was written during the reset");
    int locked = get(REG_CONFIG_LOCK, 1) != CONFIG_UNLOCKED;
    if (offset < REG_MAR0) { // r8169 rtl_rar_set, rge_set_macaddr: behind the lock, by 32 bits
        if (locked) reject(BY_LOCK, "the station address is written while it is locked");
        if (bytes != 4) reject(BY_ADDRESS, "the station address is not written by 32 bits");
    }
    if (offset > REG_CONFIG_LOCK && offset <= REG_CONFIG5 && locked)
        reject(BY_LOCK, "a configuration register is written while it is locked");
    switch (offset) {
    case REG_TX_LOW:
    case REG_TX_HIGH:
    case REG_RX_LOW:
    case REG_RX_HIGH:
        check_ring_write(offset, value);
        put(offset, bytes, value);
        break;
    case REG_CMD:
        write_command(value);
        break;
    case REG_INT_STATUS: // written ones are cleared: r8169 rtl_ack_events
        put(offset, 4, get(offset, 4) & ~value);
        break;
    case REG_TALLY_LOW:
        write_tally(value);
        break;
    case REG_TX_POLL:
        if (bytes != 2) reject(BY_DOORBELL, "doorbell: not 16 bits wide"); // r8169 rtl8169_doorbell
        doorbell(value);
        break;
    case REG_MAC_OCP:
        write_mac_window(value);
        break;
    case REG_PHY_OCP:
        write_phy_window(value);
        break;
    default:
        if (offset < REG_MAC_BACKUP || offset >= REG_MAC_BACKUP + 8) put(offset, bytes, value);
    }
}

/* ---- frames ---- */

/* The filter: r8169 rtl_set_rx_mode; 8169, page 57 (PAM, BAR). Multicast needs a bit of MAR0. */
static int is_accepted(const uint8_t *frame)
{
    static const uint8_t broadcast[6] = {255, 255, 255, 255, 255, 255};
    uint32_t filter = get(REG_RX_CONFIG, 4);
    if (memcmp(frame, broadcast, 6) == 0) return (filter & RX_ACCEPT_BROADCAST) != 0;
    return filter & RX_ACCEPT_MINE && memcmp(frame, the.reg, 6) == 0;
}

static struct rtl8125_descriptor *rx_descriptor(uint32_t at)
{
    struct rtl8125_descriptor *d;
    return (struct rtl8125_descriptor *)(void *)dma_by(BY_RING_END, ring(REG_RX_LOW) + at * sizeof *d,
                                                       sizeof *d, "the receive ring has no end");
}

static uint32_t after(uint32_t at)
{
    return rx_descriptor(at)->status & DESCRIPTOR_END ? 0 : at + 1;
}

/* Descriptors for so many bytes, all of them the device's? */
static int has_room(uint32_t bytes)
{
    for (uint32_t at = the.rx_at, n = 0, room = 0; room < bytes; at = after(at), n++) {
        struct rtl8125_descriptor *d = rx_descriptor(at);
        if (!(d->status & (uint32_t)DESCRIPTOR_OWN) || n == RING_MOST || (n && at == the.rx_at)) return 0;
        uint32_t size = d->status & RX_LENGTH;
        if (size == 0) reject(BY_BUFFER, "receive descriptor: a buffer without a size");
        dma(d->address, size, "a frame is received into memory that is not the driver's");
        room += size;
    }
    return 1;
}

/* 8169, pages 56 and 57: a frame that does not fit goes on in the next descriptor; FS and LS mark its ends,
 * the last one has its length with the FCS and its errors. */
static void deliver(const uint8_t *frame, uint32_t bytes, uint32_t errors)
{
    uint32_t whole = bytes + FCS_BYTES, done = 0;
    while (done < whole) {
        struct rtl8125_descriptor *d = rx_descriptor(the.rx_at);
        uint32_t size = d->status & RX_LENGTH, n = whole - done < size ? whole - done : size;
        uint8_t *to = the.bus.dma(the.bus.self, d->address, size);
        for (uint32_t i = 0; i < n; i++) to[i] = done + i < bytes ? frame[done + i] : 0xfc;
        uint32_t status = (d->status & DESCRIPTOR_END) | (done == 0 ? DESCRIPTOR_FIRST : 0);
        the.rx_at = after(the.rx_at);
        done += n;
        status |= done == whole ? DESCRIPTOR_LAST | errors | whole : n;
        d->vlan = 0;
        __atomic_store_n(&d->status, status, __ATOMIC_RELEASE);
    }
}

static int model_arrive(const uint8_t *frame, uint32_t bytes, enum nic_arrival how)
{
    uint32_t filter = get(REG_RX_CONFIG, 4), errors = 0;
    if (!(get(REG_CMD, 1) & CMD_RX) || the.resetting || !(get(REG_PHY_STATUS, 2) & PHY_STATUS_LINK)) return 0;
    if (get(REG_MISC, 4) & MISC_RX_GATE) return 0;   // r8169 rtl_enable_rxdvgate
    if (get(REG_MCU, 1) & MCU_OUT_OF_BAND) return 0; // the management unit has it
    if (the.phy[PHY_BMCR / 2] & BMCR_POWER_DOWN) return 0;
    if (how == ARRIVES_WITH_BAD_CRC) errors |= RX_CRC | RX_ERROR;
    if (how == ARRIVES_TOO_LATE) errors |= RX_WATCHDOG | RX_ERROR;
    if (bytes < TX_FRAME_MIN) errors |= RX_RUNT | RX_ERROR;
    if (bytes + FCS_BYTES > get(REG_RX_MAX, 2)) errors |= RX_WATCHDOG | RX_ERROR; // r8169 rtl_set_rx_max_size
    if ((errors & RX_CRC && !(filter & RX_ACCEPT_BAD)) || (errors & RX_RUNT && !(filter & RX_ACCEPT_RUNTS))) {
        the.tally.rx_errors++; // r8169 AcceptErr, AcceptRunt; 8169, 6.1 (RxEr)
        return 0;
    }
    if (bytes < 6 || !is_accepted(frame)) return 0;
    if (!has_room(bytes + FCS_BYTES)) {
        the.tally.rx_missed++; // there is no room in the model itself
        the.tally.rx_errors++; // 8169, 6.1: RxEr includes missed frames
        return 0;
    }
    the.tally.rx_frames++;
    deliver(frame, bytes, errors);
    return 1;
}

/* 8169, pages 51 to 54: OWN is cleared when a frame has been read; EOR leads back to the ring's first. */
static uint32_t model_transmit(uint32_t most)
{
    uint32_t n = 0;
    if (!(get(REG_CMD, 1) & CMD_TX) || !(get(REG_PHY_STATUS, 2) & PHY_STATUS_LINK)) return 0;
    for (; n < most && the.told; n++, the.told--) {
        uint32_t at = the.tx_at;
        struct rtl8125_descriptor *d;
        d = (struct rtl8125_descriptor *)(void *)dma(ring(REG_TX_LOW) + at * sizeof *d, sizeof *d, "no ring");
        uint32_t bytes = d->status & TX_LENGTH;
        const uint8_t *frame = the.bus.dma(the.bus.self, d->address, bytes);
        if (memcmp(d, &the.seen[at], sizeof *d) != 0)
            reject(BY_OWNER, "a transmit descriptor was changed while it was the device's");
        if (!frame || frame_sum(frame, bytes) != the.sum[at])
            reject(BY_OWNER, "a frame was changed while its descriptor was the device's");
        the.bus.sent(the.bus.self, frame, bytes);
        the.tally.tx_frames++;
        the.tx_at = d->status & DESCRIPTOR_END ? 0 : at + 1;
        __atomic_store_n(&d->status, d->status & ~(uint32_t)DESCRIPTOR_OWN, __ATOMIC_RELEASE);
    }
    return n;
}

/* rge_get_link_status, rge_ifmedia_sts (RGE_PHYSTAT). */
static void set_link(uint32_t mbps)
{
    uint32_t speed = mbps == 2500   ? PHY_STATUS_2500
                     : mbps == 1000 ? PHY_STATUS_1000
                     : mbps == 100  ? PHY_STATUS_100
                                    : PHY_STATUS_10;
    put(REG_PHY_STATUS, 2, mbps ? PHY_STATUS_LINK | speed | 1 : 0);
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
    return (get(REG_CMD, 1) & (CMD_TX | CMD_RX)) != 0;
}

/* rge_phy_config (Disable EEE): the MAC's bits, and what the PHY offers. */
static int line_sleeps(void)
{
    return the.eee || the.mac[MAC_EEE / 2] & MAC_EEE_BITS;
}

/* Asleep, with the event enabled (PCI): r8169 __rtl8169_set_wol (magic packets by MAC register 0xc0b6, others
 * by Config5; LanWake, PME_SIGNAL), rtl_wol_enable_rx (filter, gate), rtl_set_d3_pll_down; rge_wol_power
 * (PM_EN). */
static int wakes(const uint8_t *frame, uint32_t bytes)
{
    static const uint8_t broadcast[6] = {255, 255, 255, 255, 255, 255};
    uint32_t by_frame = get(REG_CONFIG5, 1) & CONFIG5_WAKE_FRAMES;
    if (!(get(REG_CONFIG1, 1) & CONFIG1_POWER) || !(get(REG_CONFIG2, 1) & CONFIG2_PME_SIGNAL) ||
        !(get(REG_CONFIG5, 1) & CONFIG5_LAN_WAKE) || (get(REG_PM, 1) & PM_PLL_ALWAYS) != PM_PLL_ALWAYS)
        return 0;
    if (!(get(REG_PHY_STATUS, 2) & PHY_STATUS_LINK) || the.phy[PHY_BMCR / 2] & BMCR_POWER_DOWN) return 0;
    if (get(REG_MISC, 4) & MISC_RX_GATE || bytes < 6 || !is_accepted(frame)) return 0;
    if (by_frame && (memcmp(frame, the.reg, 6) == 0 || memcmp(frame, broadcast, 6) == 0)) return 1;
    return the.mac[MAC_WAKE / 2] & MAC_WAKE_MAGIC && is_magic(frame, bytes, the.reg);
}

const struct nic_model rtl8125_model = {
    .name = "rtl8125",
    .vendor = REALTEK_VENDOR,
    .device = DEVICE_RTL8125,
    .bar = RTL_BAR,
    .bar_bytes = RTL_BAR_BYTES,
    .variants = 4,
    .loses_doorbells = 1,
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
    .sources = sources,
    .source_count = SOURCES,
};
