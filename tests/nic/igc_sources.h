/* igc_sources.h: what accesses to the model of the I225 and I226 are rejected by, and who says so. */
#ifndef DUCKD_TESTS_NIC_IGC_SOURCES_H
#define DUCKD_TESTS_NIC_IGC_SOURCES_H

#include "tests/nic/model.h"

enum igc_source {
    BY_ACCESS,
    BY_MEMORY,
    BY_RESET,
    BY_MASTER_OFF,
    BY_UNITS_OFF,
    BY_PHY_SEMAPHORE,
    BY_SYNC,
    BY_MDIC,
    BY_RING_KNOWN,
    BY_RINGS_STILL,
    BY_RING_ALIGN,
    BY_BUFFER_TYPE,
    BY_NO_BUFFERING,
    BY_RX_TAIL,
    BY_RX_LAST,
    BY_MULTICAST,
    BY_TX_TAIL,
    BY_TX_LAST,
    BY_TRANSMITTER,
    BY_TAIL,
    BY_WHOLE_FRAMES,
    BY_PAYLOAD,
    BY_PADDING,
    BY_LONGEST,
    BY_REMAINS,
    BY_OWNER,
    BY_COUNT
};
extern const struct nic_source igc_sources[BY_COUNT];

#endif
