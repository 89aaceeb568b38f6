/* e1000e_regs.h: registers of the Intel 82574 GbE controller; sections are those of its datasheet (rev. 3.4).
 */
#ifndef DUCK_NIC_E1000E_REGS_H
#define DUCK_NIC_E1000E_REGS_H

#include <stdint.h>

enum { INTEL_VENDOR = 0x8086, DEVICE_82574L = 0x10d3 };

/* 10.2.2: general registers. */
enum {
    REG_CTRL = 0x0000,
    CTRL_SLU = 1 << 6, // set link up
    CTRL_RST = 1 << 26,
    REG_STATUS = 0x0008,
    STATUS_LU = 1 << 1,
    STATUS_SPEED_SHIFT = 6, // 2 bits: 10, 100, 1000, 1000 Mb/s
};

/* 10.2.4: interrupts. */
enum { REG_ICR = 0x00c0, REG_IMC = 0x00d8 };

/* 10.2.5: receive. */
enum {
    REG_RCTL = 0x0100,
    RCTL_EN = 1 << 1,
    RCTL_LPE = 1 << 5,            // takes frames longer than 1522 bytes
    RCTL_BAM = 1 << 15,           // takes broadcasts
    RCTL_16K = 1 << 16 | 1 << 25, // buffers of 16 KiB: BSIZE 1, BSEX
    RCTL_SECRC = 1 << 26,         // strips the Ethernet CRC
    REG_RDBAL = 0x2800,
    REG_RDBAH = 0x2804,
    REG_RDLEN = 0x2808,
    REG_RDH = 0x2810,
    REG_RDT = 0x2818,
    REG_RXCSUM = 0x5000,
    REG_MTA = 0x5200, // 128 words: multicast table
    MTA_WORDS = 128,
    REG_RAL0 = 0x5400,
    REG_RAH0 = 0x5404,
    RAH_AV = INT32_MIN, // bit 31: valid
};

/* 10.2.6: transmit. */
enum {
    REG_TCTL = 0x0400,
    TCTL_EN = 1 << 1,
    TCTL_PSP = 1 << 3,           // pads short frames
    TCTL_CT = 0x0f << 4,         // collision threshold
    TCTL_COLD_FULL = 0x3f << 12, // collision distance, full duplex
    REG_TIPG = 0x0410,
    TIPG_COPPER = 8 | 8 << 10 | 6 << 20,
    REG_TDBAL = 0x3800,
    REG_TDBAH = 0x3804,
    REG_TDLEN = 0x3808,
    REG_TDH = 0x3810,
    REG_TDT = 0x3818,
};

/* 10.2.7: statistics; cleared by reading. */
enum { REG_CRCERRS = 0x4000, REG_MPC = 0x4010 };

/* 7.1.4.1: legacy receive descriptor. */
struct e1000e_rx {
    uint64_t address;
    uint16_t length, checksum;
    uint8_t status, errors;
    uint16_t vlan;
};
enum { RX_STATUS_DD = 1, RX_STATUS_EOP = 2 };

/* 7.2.2: legacy transmit descriptor. */
struct e1000e_tx {
    uint64_t address;
    uint16_t length;
    uint8_t checksum_offset, command, status, checksum_start;
    uint16_t vlan;
};
enum { TX_COMMAND_EOP = 1, TX_COMMAND_IFCS = 2, TX_COMMAND_RS = 8, TX_STATUS_DD = 1 };
_Static_assert(sizeof(struct e1000e_rx) == 16 && sizeof(struct e1000e_tx) == 16, "descriptors");

#endif
