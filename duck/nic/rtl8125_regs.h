/* rtl8125_regs.h: registers and descriptors of the Realtek RTL8125A, B and D. Realtek publishes no datasheet
 * of them. Names and values are facts of two public drivers, r8169 of Linux (drivers/net/ethernet/realtek/
 * r8169_main.c, 6.18) and rge(4) of OpenBSD and FreeBSD (if_rgereg.h 1.15, if_rge.c, if_rge_hw.c);
 * descriptors and what is as old as the family are in the datasheet of the RTL8169 (rev. 1.21), here "8169".
 */
#ifndef DUCK_NIC_RTL8125_REGS_H
#define DUCK_NIC_RTL8125_REGS_H

#include <stdint.h>

enum { REALTEK_VENDOR = 0x10ec, DEVICE_RTL8125 = 0x8125, RTL_BAR = 2, RTL_BAR_BYTES = 0x10000 };

/* r8169 enum rtl_registers and rtl8125_registers; rge: if_rgereg.h. Width in bits in front. */
enum {
    REG_MAC0 = 0x00,        // 32: station address, written by 32 bits only
    REG_MAC4 = 0x04,        // 32
    REG_MAR0 = 0x08,        // 32: multicast filter
    REG_MAR4 = 0x0c,        // 32
    REG_TALLY_LOW = 0x10,   // 32: where counters are dumped, 64-byte aligned
    TALLY_DUMP = 1 << 3,    // set to start, clear when they are there
    REG_TALLY_HIGH = 0x14,  // 32
    REG_TX_LOW = 0x20,      // 32: transmit ring, 256-byte aligned
    REG_TX_HIGH = 0x24,     // 32
    REG_INT_CFG0 = 0x34,    // 8
    REG_CMD = 0x37,         // 8
    REG_INT_MASK = 0x38,    // 32
    REG_INT_STATUS = 0x3c,  // 32: written ones are cleared
    REG_TX_CONFIG = 0x40,   // 32
    REG_RX_CONFIG = 0x44,   // 32
    REG_CONFIG_LOCK = 0x50, // 8: opens REG_CONFIG1 .. 5 and the station address
    CONFIG_LOCKED = 0x00,
    CONFIG_UNLOCKED = 0xc0,
    REG_CONFIG1 = 0x52,   // 8
    CONFIG1_POWER = 0x01, // power management (rge RGE_CFG1_PM_EN)
    CONFIG1_SPEED_DOWN = 0x10,
    REG_CONFIG2 = 0x53, // 8
    CONFIG2_PME_SIGNAL = 0x20,
    CONFIG2_CLOCK_REQUEST = 0x80,
    REG_CONFIG3 = 0x54, // 8
    CONFIG3_READY_TO_L23 = 0x02,
    CONFIG3_WAKE_LINK = 0x10,
    CONFIG3_WAKE_MAGIC = 0x20,
    REG_CONFIG5 = 0x56, // 8
    CONFIG5_ASPM = 0x01,
    CONFIG5_LAN_WAKE = 0x02,
    CONFIG5_WAKE_FRAMES = 0x70, // to us, to a group, to everybody
    REG_PHY_STATUS = 0x6c,      // 16
    REG_PM = 0x6f,              // 8
    PM_PLL_ALWAYS = 0xc0,       // the PHY's clock stays on in D3
    REG_INT_CFG1 = 0x7a,        // 16
    REG_TX_POLL = 0x90,         // 16: the doorbell
    TX_POLL_NOW = 1,
    REG_MAC_OCP = 0xb0,     // 32: a window to MAC registers
    REG_PHY_OCP = 0xb8,     // 32: a window to PHY registers
    OCP_FLAG = INT32_MIN,   // bit 31: write; PHY: a read is done when it is set, a write when it is clear
    OCP_SHIFT = 15,         // of the register's (even) number
    REG_MCU = 0xd3,         // 8
    MCU_OUT_OF_BAND = 0x80, // frames go to the management unit
    MCU_FIFOS_EMPTY = 0x30,
    MCU_LISTS_READY = 0x02,
    REG_RX_MAX = 0xda,        // 16: larger frames are errors
    REG_C_PLUS = 0xe0,        // 16
    C_PLUS_KEEP = 0x2063,     // r8169 CPCMD_MASK: normal mode, VLAN, checksum, interrupt timer
    C_PLUS_OFFLOADS = 0x0060, // VLAN and checksum of received frames
    REG_IDLE = 0xe2,          // 16: B and D
    IDLE_ALL = 0x0103,
    REG_RX_LOW = 0xe4,      // 32: receive ring, 256-byte aligned
    REG_RX_HIGH = 0xe8,     // 32
    REG_MISC = 0xf0,        // 32
    MISC_RX_GATE = 1 << 19, // frames from the PHY stop here
    REG_0382 = 0x0382,      // 16: unnamed in both drivers
    VALUE_0382 = 0x221b,
    REG_COALESCE = 0x0a00, // 32 each: up to 0x0aff (A, D) or 0x0a7f (B)
    REG_1880 = 0x1880,     // 16: unnamed
    BITS_1880 = 0x0030,
    REG_MAC_BACKUP = 0x19e0, // 8 each: the address of the vendor
    REG_RSS = 0x4500,        // 32
    REG_QUEUES = 0x4800,     // 16: number of receive queues
};

/* REG_CMD: r8169 ChipCmdBits. */
enum { CMD_TX = 0x04, CMD_RX = 0x08, CMD_RESET = 0x10, CMD_STOP = 0x80 };

/* REG_TX_CONFIG: r8169 rtl_chip_infos (mask 0x7cf of bits 20 and up), rge RGE_TXCFG_HWREV. */
enum {
    REVISION_SHIFT = 20,
    REVISION_MASK = 0x7cf,
    REVISION_A = 0x609,
    REVISION_B = 0x641,
    REVISION_D = 0x688, // and 0x689; 0x68a, 0x68b: the same under other names
    REVISION_D_MASK = 0x7cc,
    TX_CONFIG_START = 3 << 24 | 7 << 8, // shortest gap between frames, DMA bursts without limit
};

/* REG_RX_CONFIG: r8169 rtl_init_rxcfg. */
enum {
    RX_ACCEPT_MINE = 0x02,
    RX_ACCEPT_BROADCAST = 0x08,
    RX_ACCEPT_RUNTS = 0x10,
    RX_ACCEPT_BAD = 0x20,
    RX_ACCEPT = 0x3f,
    RX_CONFIG_START = 8 << 27 | 7 << 8, // fetches 8 descriptors, DMA bursts without limit
    RX_CONFIG_PAUSE_SLOT = 1 << 11,     // B and D
    RX_MAX_START = 0x4000,              // r8169: lower values do harm
};

/* REG_PHY_STATUS: rge RGE_PHYSTAT_*. */
enum {
    PHY_STATUS_LINK = 0x0002,
    PHY_STATUS_10 = 0x0004,
    PHY_STATUS_100 = 0x0008,
    PHY_STATUS_1000 = 0x0010,
    PHY_STATUS_2500 = 0x0400,
};

/* PHY registers; clause 22 register n is 0xa400 + 2 n (r8169 OCP_STD_PHY_BASE). */
enum {
    PHY_BMCR = 0xa400,
    BMCR_NEGOTIATE = 0x1000,
    BMCR_POWER_DOWN = 0x0800,
    BMCR_RESTART = 0x0200,
    PHY_STATE = 0xa420, // rge_set_phy_power: low 3 bits are 3 when it runs
    PHY_STATE_MASK = 7,
    PHY_STATE_RUNS = 3,
    PHY_ADVERTISE = 0xa5d4, // rge_ifmedia_upd
    ADVERTISE_2500 = 0x0080,
    PHY_EEE_OFFER = 0xa5d0, // IEEE 802.3, 45.2.7.13: register 7.60 (Linux realtek_main.c, rtlgen_read_mmd)
    EEE_OFFER_100 = 0x0002,
    EEE_OFFER_1000 = 0x0004,
    PHY_EEE_OFFER_2500 = 0xa6d4, // 45.2.7.14a: register 7.62 (rtl822x_read_mmd)
    EEE_OFFER_2500 = 0x0001,
};

/* MAC registers behind REG_MAC_OCP that have a name or a known purpose (r8169 comments). */
enum {
    MAC_TX_FORMAT = 0xeb58, // bit 0: 32-byte descriptors
    MAC_TALLY = 0xea84,     // bits 0 and 1: extended counters
    MAC_TCAM = 0xeb54,      // bit 0: clears the address filter's memory
    MAC_TCAM_BUSY = 0xe00e, // bit 13
    MAC_EEE = 0xe040,       // r8169 rtl8125_config_eee_mac: both bits on; rge_phy_config: both off
    MAC_EEE_BITS = 3,
    MAC_WAKE = 0xc0b6, // r8169 __rtl8169_set_wol, rge_wol
    MAC_WAKE_MAGIC = 1,
};

/* 8169, pages 51 to 57: a descriptor of either ring. */
struct rtl8125_descriptor {
    uint32_t status, vlan;
    uint64_t address;
};
enum {
    DESCRIPTOR_OWN = INT32_MIN, // bit 31: the device's
    DESCRIPTOR_END = 1 << 30,   // the last one of the ring
    DESCRIPTOR_FIRST = 1 << 29,
    DESCRIPTOR_LAST = 1 << 28,
    RX_WATCHDOG = 1 << 22, // too long
    RX_ERROR = 1 << 21,    // any of the errors
    RX_RUNT = 1 << 20,
    RX_CRC = 1 << 19,
    RX_LENGTH = 0x3fff, // with the FCS
    TX_LENGTH = 0xffff,
    RING_ALIGN = 256,
    FCS_BYTES = 4,
    TX_FRAME_MIN = 60, // r8169 rtl_quirk_packet_padto: this family is given padded frames
};

/* 8169, 6.1, and r8169 struct rtl8169_counters: the dump, as far as it is used. */
struct rtl8125_tally {
    uint64_t tx_frames, rx_frames, tx_errors;
    uint32_t rx_errors; // with those that are missed
    uint16_t rx_missed, align_errors;
    uint8_t rest[160];
};
enum { TALLY_ALIGN = 64 };

_Static_assert(sizeof(struct rtl8125_descriptor) == 16 && sizeof(struct rtl8125_tally) == 192, "layout");

#endif
