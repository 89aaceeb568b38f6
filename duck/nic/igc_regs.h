/* igc_regs.h: registers and descriptors of the Intel I225 and I226. Names and values are facts of the public
 * drivers igc of Linux (drivers/net/ethernet/intel/igc) and igc(4) of OpenBSD and FreeBSD (igc_regs.h,
 * igc_defines.h, igc_base.h, igc_phy.c, igc_i225.c); where they leave a rule to the reader it is that of the
 * I210, whose MAC the I225 continues: its data sheet, here "I210". */
#ifndef DUCK_NIC_IGC_REGS_H
#define DUCK_NIC_IGC_REGS_H

#include <stdint.h>

enum { IGC_VENDOR = 0x8086, IGC_BAR = 0, IGC_BAR_BYTES = 0x20000 };

/* igc_hw.h. The numbers of parts without an NVM (0x15fd, 0x125f) are left out: they have no address. */
enum {
    DEVICE_I225_LM = 0x15f2,
    DEVICE_I225_V = 0x15f3,
    DEVICE_I220_V = 0x15f7,
    DEVICE_I225_I = 0x15f8,
    DEVICE_I225_IT = 0x0d9f,
    DEVICE_I225_K = 0x3100,
    DEVICE_I225_K2 = 0x3101,
    DEVICE_I225_LMVP = 0x5502,
    DEVICE_I226_K = 0x3102,
    DEVICE_I226_LMVP = 0x5503,
    DEVICE_I226_LM = 0x125b,
    DEVICE_I226_V = 0x125c,
    DEVICE_I226_IT = 0x125d,
    DEVICE_I221_V = 0x125e,
};

/* All registers are 32 bits wide. */
enum {
    REG_CTRL = 0x0000,
    CTRL_MASTER_DISABLE = 1 << 2, // no new DMA
    CTRL_SET_LINK_UP = 1 << 6,
    CTRL_FORCE_SPEED = 1 << 11,
    CTRL_FORCE_DUPLEX = 1 << 12,
    CTRL_WAKE_FROM_D3COLD = 1 << 20, // IGC_CTRL_ADVD3WUC
    CTRL_DEV_RST = 1 << 29,
    REG_STATUS = 0x0008,
    STATUS_LU = 1 << 1,
    STATUS_SPEED_100 = 1 << 6,
    STATUS_SPEED_1000 = 1 << 7, // also with the next one
    STATUS_SPEED_2500 = 1 << 22,
    STATUS_MASTER_ENABLE = 1 << 19, // DMA is going on, or may
    REG_EECD = 0x0010,
    EECD_AUTO_RD = 1 << 9, // the NVM has been read after the reset
    REG_CTRL_EXT = 0x0018,
    CTRL_EXT_DRIVER_LOADED = 1 << 28,
    REG_MDIC = 0x0020,
    MDIC_REG_SHIFT = 16,
    MDIC_REG_MASK = 0x001f0000,
    MDIC_WRITE = 1 << 26,
    MDIC_READ = 1 << 27,
    MDIC_READY = 1 << 28,
    MDIC_ERROR = 1 << 30,
    REG_RCTL = 0x0100,
    RCTL_EN = 1 << 1,
    RCTL_LPE = 1 << 5,    // takes frames longer than 1522 bytes, up to REG_RLPML
    RCTL_BAM = 1 << 15,   // takes broadcasts
    RCTL_SECRC = 1 << 26, // strips the Ethernet CRC
    REG_TCTL = 0x0400,
    TCTL_EN = 1 << 1,
    TCTL_PSP = 1 << 3,          // pads short frames, but only from 17 bytes on (Linux igc_xmit_frame)
    TCTL_CT = 15 << 4,          // collision threshold
    TCTL_RTLC = 1 << 24,        // sends again after a late collision
    REG_PHPM = 0x0e14,          // power management of the PHY
    PHPM_GO_LINK_DOWN = 1 << 5, // igc_setup_copper_link_i225
    REG_EEER = 0x0e30,          // energy-efficient Ethernet: the MAC's part
    EEER_LPI = 7 << 16,
    REG_IPCNFG = 0x0e38, // what the PHY offers
    IPCNFG_EEE = 7 << 2, // 100, 1000, 2500 Mb/s
    REG_ICR = 0x1500,
    REG_IMC = 0x150c,
    REG_EIMC = 0x1528,
    REG_DMACR = 0x2508, // DMA coalescing
    DMACR_EN = INT32_MIN,
    REG_RXCSUM = 0x5000,
    REG_RLPML = 0x5004, // longest frame, with the FCS
    REG_MTA = 0x5200,   // 128 words: multicast table
    MTA_WORDS = 128,
    REG_RAL0 = 0x5400, // station address, from the NVM by the reset
    REG_RAH0 = 0x5404,
    RAH_AV = INT32_MIN, // bit 31: valid
    REG_WUC = 0x5800,   // wake-up
    WUC_PME_ENABLE = 1 << 1,
    REG_WUFC = 0x5808, // by which frames
    WUFC_MAGIC = 1 << 1,
    REG_WUS = 0x5810,  // by which frames so far
    REG_MRQC = 0x5818, // several receive queues
    REG_SWSM = 0x5b50,
    SWSM_SMBI = 1,    // among drivers: set by reading; 0 read: ours
    SWSM_SWESMBI = 2, // against the firmware: stays set when it was free
    REG_SW_FW_SYNC = 0x5b5c,
    SYNC_PHY = 2, // of the software; 16 bits higher: of the firmware
};

/* Queue 0: I210, 8.10 and 8.12. */
enum {
    REG_RDBAL = 0xc000,
    REG_RDBAH = 0xc004,
    REG_RDLEN = 0xc008,
    REG_SRRCTL = 0xc00c,
    SRRCTL_KILOBYTES = 1,        // size of a buffer, from bit 0
    SRRCTL_ONE_BUFFER = 1 << 25, // advanced descriptors, no header split
    SRRCTL_DROP = INT32_MIN,     // without descriptors frames are dropped and counted
    REG_RDH = 0xc010,
    REG_RDT = 0xc018,
    REG_RXDCTL = 0xc028,
    REG_RQDPC = 0xc030, // frames dropped; cleared by reading
    REG_TDBAL = 0xe000,
    REG_TDBAH = 0xe004,
    REG_TDLEN = 0xe008,
    REG_TDH = 0xe010,
    REG_TDT = 0xe018,
    REG_TXDCTL = 0xe028,
    QUEUE_ENABLE = 1 << 25,
    /* Prefetches when it has less than 8 and there are 8; writes back every single one: nobody is interrupted
     * who would look at the rest. */
    QUEUE_THRESHOLDS = 8 | 8 << 8 | 1 << 16,
    QUEUE_WRITE_BACK_SHIFT = 16,
    QUEUE_WRITE_BACK_MASK = 31,
    RING_ALIGN = 128,
};

/* Statistics, cleared by reading. */
enum {
    REG_CRCERRS = 0x4000,
    REG_MPC = 0x4010, // missed: no room in the device
    REG_RUC = 0x40a4, // too short
    REG_RFC = 0x40a8, // too short and damaged
    REG_ROC = 0x40ac, // too long
    REG_RJC = 0x40b0, // too long and damaged
};

/* The PHY (GPY211): clause 22 registers, and clause 45 registers through 13 and 14. */
enum {
    PHY_BMCR = 0,
    BMCR_NEGOTIATE = 0x1000,
    BMCR_POWER_DOWN = 0x0800,
    BMCR_RESTART = 0x0200,
    PHY_MMD_CONTROL = 13,
    MMD_DATA = 0x4000,
    PHY_MMD_DATA = 14,
    MMD_NEGOTIATION = 7,
    MULTI_GIGABIT = 32, // register of it
    ADVERTISE_2500 = 0x0080,
};

/* igc_base.h: advanced descriptors. What software writes, and what the device writes back. */
struct igc_rx {
    uint64_t address; // written back: hash
    uint32_t status;  // software: header address, 0
    uint16_t length, vlan;
};
enum { RX_DD = 1, RX_EOP = 2, RX_ERROR = INT32_MIN };

struct igc_tx {
    uint64_t address;
    uint32_t command; // with the length
    uint32_t status;  // software: length of the whole frame
};
enum {
    TX_DATA = 3 << 20,
    TX_EOP = 1 << 24,
    TX_IFCS = 1 << 25, // inserts the FCS
    TX_RS = 1 << 27,   // reports when it is sent
    TX_ADVANCED = 1 << 29,
    TX_LENGTH = 0xffff,
    TX_PAYLOAD_SHIFT = 14,
    TX_DD = 1,
    TX_FRAME_MIN = 60,
};
_Static_assert(sizeof(struct igc_rx) == 16 && sizeof(struct igc_tx) == 16, "descriptors");

#endif
