/* model.h: register-level models of NICs that QEMU does not have. A model knows nothing of the driver: it
 * sees accesses to its BAR, reads and writes memory through its bus, and takes and gives frames. It is used
 * twice: linked into a unit test of the driver, and behind QEMU as a device in a process of its own
 * (pci_device.c).
 *
 * A model behaves as public sources say the device does; each behaviour names its source where it stands.
 * What the device would not accept, or what would make it write to memory it was not given, is rejected: the
 * bus is told what was wrong and by which source, and the call does not return. No rejection without a
 * source: those of a model are a table, and some are honestly ours. One device of each kind, one thread. */
#ifndef TESTS_NIC_MODEL_H
#define TESTS_NIC_MODEL_H

#include <stdint.h>

enum nic_rule {
    RULE_STATED = 1, // in words, by a data sheet or a comment of a public driver
    RULE_KEPT,       // by every public driver, without a word why; what the device does otherwise nobody says
    RULE_OWN,        // ours: silicon would let it pass, or do harm without a word
};

struct nic_source {
    enum nic_rule rule;
    const char *where; // section, function; RULE_OWN: why
};

/* What is around the device. */
struct nic_bus {
    void *self;
    /* Memory behind a DMA address; NULL: the driver gave the device no such memory. */
    uint8_t *(*dma)(void *self, uint64_t address, uint32_t bytes);
    void (*sent)(void *self, const uint8_t *frame, uint32_t bytes); // onto the wire, FCS not included
    void (*reject)(void *self, const char *what, const struct nic_source *by); // does not return
};

enum nic_arrival {
    ARRIVES_WELL,
    ARRIVES_WITH_BAD_CRC,
    ARRIVES_TOO_LATE, // the device gives up inside of it and says so in its descriptor
};

enum nic_fault {
    FAULT_NONE,
    FAULT_RESET_HANGS,
    FAULT_DOORBELL_LOST, // the next one
    FAULT_DEAD,          // off the bus: all ones
};

struct nic_model {
    const char *name;
    uint16_t vendor, device;
    uint32_t bar, bar_bytes; // the memory BAR with its registers
    uint32_t variants;   // revisions of the chip: 0 .. variants - 1; the next one is no chip for the driver
    int loses_doorbells; // FAULT_DOORBELL_LOST exists
    /* A device that a boot loader has left running. Its vendor's address is `mac`, its link is up. */
    void (*power_on)(const struct nic_bus *bus, uint32_t variant, const uint8_t mac[6]);
    uint64_t (*read)(uint32_t offset, uint32_t bytes);
    void (*write)(uint32_t offset, uint32_t bytes, uint64_t value);
    /* A frame (without FCS) from the wire. 1: it is in memory; 0: it is not. */
    int (*arrive)(const uint8_t *frame, uint32_t bytes, enum nic_arrival how);
    uint32_t (*transmit)(uint32_t most); // sends up to so many of the frames it was told of; returns how many
    void (*set_link)(uint32_t mbps);     // 0: down
    void (*set_fault)(enum nic_fault fault);
    uint32_t (*doorbells)(void); // rung for transmission since power-on
    int (*is_running)(void);     // it reads or writes memory by itself, if it may
    int (*line_sleeps)(void);    // energy-efficient Ethernet: it may, between frames
    int (*wakes)(const uint8_t *frame,
                 uint32_t bytes);     // would ask for power, asleep, when this frame arrived
    const struct nic_source *sources; // (source_count): all that it rejects by
    uint32_t source_count;
};

/* AMD, Magic Packet Technology (publication 20213): six bytes of ones, then sixteen times the address,
 * anywhere in the frame. */
int is_magic(const uint8_t *frame, uint32_t bytes, const uint8_t mac[6]);
/* To see that nobody changes a frame while it is the device's (FNV-1a, 32 bits). */
uint32_t frame_sum(const uint8_t *frame, uint32_t bytes);

extern const struct nic_model rtl8125_model, igc_model;

#endif
