/* igc_sources.c: sections of the I210's data sheet (rev. 3.1); functions of Linux's igc. */
#include "tests/nic/igc_sources.h"

const struct nic_source igc_sources[BY_COUNT] = {
    [BY_ACCESS] = {RULE_KEPT, "igc rd32, wr32: 32 bits, aligned"},
    [BY_MEMORY] = {RULE_OWN,
                   "no device asks whose memory it is: without an IOMMU it reads or spoils somebody's"},
    [BY_RESET] = {RULE_KEPT, "igc_reset_hw_base, igc_get_auto_rd_done: nothing but EECD until it says done"},
    [BY_MASTER_OFF] = {RULE_STATED, "I210, 5.2.3.3; igc_reset_hw_base (comment, igc_disable_pcie_master)"},
    [BY_UNITS_OFF] = {RULE_KEPT, "igc_reset_hw_base: RCTL is 0, TCTL without EN before DEV_RST"},
    [BY_PHY_SEMAPHORE] = {RULE_STATED, "I210, 4.6 and 4.6.1: the PHY is shared with the firmware; "
                                       "igc_acquire_phy_base"},
    [BY_SYNC] = {RULE_STATED, "I210, 4.6.1, 4.6.2 and 8.7.1: SWESMBI is had before SW_FW_SYNC is written"},
    [BY_MDIC] = {RULE_KEPT, "igc_read_phy_reg_mdic, igc_write_phy_reg_mdic: both wait for MDIC_READY"},
    [BY_RING_KNOWN] = {RULE_STATED, "I210, 4.5.9 and 4.5.10: base and length, then the enable bit"},
    [BY_RINGS_STILL] = {RULE_STATED,
                        "I210, 8.10.4 to 8.10.6 (footnotes) and 8.12: only while the queue is off"},
    [BY_RING_ALIGN] = {RULE_STATED, "I210, 8.10.4 and 8.10.6: base and length are multiples of 128"},
    [BY_BUFFER_TYPE] = {RULE_STATED,
                        "I210, 4.5.9 and 8.10.2: SRRCTL has buffer size and descriptor type first"},
    [BY_NO_BUFFERING] = {RULE_OWN, "what waits inside of the device behind a full ring is not modelled"},
    [BY_RX_TAIL] = {RULE_STATED,
                    "I210, 8.10.8 (note): a tail that is written to a disabled queue is ignored"},
    [BY_RX_LAST] = {RULE_STATED, "I210, 4.5.9: RCTL.RXEN comes after the rings"},
    [BY_MULTICAST] = {RULE_STATED, "I210, 4.5.9: software zeroes the multicast table"},
    [BY_TX_TAIL] = {RULE_STATED, "I210, 4.5.10 (note): the tail is not moved until the queue is enabled"},
    [BY_TX_LAST] = {RULE_STATED, "I210, 4.5.10: TCTL.EN comes after all other settings"},
    [BY_TRANSMITTER] = {RULE_KEPT, "igc_up: igc_configure (TCTL), later netif_tx_start_all_queues"},
    [BY_TAIL] = {RULE_STATED,
                 "I210, 7.2.2.4 and 8.10.8: the tail is one beyond the last descriptor, in the ring"},
    [BY_WHOLE_FRAMES] = {RULE_OWN,
                         "the device takes pieces, offloads and frames that are not reported (I210, "
                         "7.2.2.3), but this driver makes none and waits for every report: a mistake"},
    [BY_PAYLOAD] = {RULE_STATED, "I210, 7.2.2.3.9: PAYLEN is the size of the whole frame"},
    [BY_PADDING] = {RULE_STATED, "I210, 7.2.2.1.2 (note): 17 bytes at least with TCTL.PSP, 60 without"},
    [BY_LONGEST] = {RULE_STATED, "I210, 7.2.2.1.2 and 8.12.11: 9728 bytes"},
    [BY_REMAINS] = {RULE_OWN,
                    "only DD must be clear (I210, 7.1.4.1), but what is left of the last frame would be "
                    "read as the next one's by a driver that looks too early"},
    [BY_OWNER] = {RULE_STATED, "I210, 7.2.2.4: descriptors are left alone until the head has passed them"},
};
