/* virtio_regs.h: registers and structures of virtio 1.2 over PCI; sections are those of the specification. */
#ifndef DUCK_NIC_VIRTIO_REGS_H
#define DUCK_NIC_VIRTIO_REGS_H

#include <stdint.h>

/* 4.1.2: PCI ids. */
enum { VIRTIO_VENDOR = 0x1af4, VIRTIO_NET_MODERN = 0x1041, VIRTIO_NET_TRANSITIONAL = 0x1000 };

/* PCI capabilities (PCI 3.0, 6.7) and 4.1.4: virtio's own. */
enum {
    PCI_STATUS = 0x06,
    PCI_STATUS_CAPABILITIES = 0x10,
    PCI_CAPABILITIES = 0x34,
    PCI_CAPABILITY_VENDOR = 0x09,
    CAP_TYPE = 3,
    CAP_BAR = 4,
    CAP_OFFSET = 8,
    CAP_LENGTH = 12,
    CAP_NOTIFY_MULTIPLIER = 16,
    CAP_COMMON = 1,
    CAP_NOTIFY = 2,
    CAP_DEVICE = 4,
};

/* 4.1.4.3: common configuration. */
enum {
    COMMON_DEVICE_FEATURE_SELECT = 0x00,
    COMMON_DEVICE_FEATURE = 0x04,
    COMMON_DRIVER_FEATURE_SELECT = 0x08,
    COMMON_DRIVER_FEATURE = 0x0c,
    COMMON_STATUS = 0x14, // 8 bits
    COMMON_QUEUE_SELECT = 0x16,
    COMMON_QUEUE_SIZE = 0x18,
    COMMON_QUEUE_ENABLE = 0x1c,
    COMMON_QUEUE_NOTIFY_OFFSET = 0x1e,
    COMMON_QUEUE_DESCRIPTORS = 0x20, // 64 bits, as the next two
    COMMON_QUEUE_DRIVER = 0x28,
    COMMON_QUEUE_DEVICE = 0x30,
};

/* 2.1: device status. */
enum {
    STATUS_ACKNOWLEDGE = 1,
    STATUS_DRIVER = 2,
    STATUS_DRIVER_OK = 4,
    STATUS_FEATURES_OK = 8,
    STATUS_NEEDS_RESET = 64,
};

/* 5.1.3 and 6: feature bits. */
enum { FEATURE_MAC = 5, FEATURE_STATUS = 16, FEATURE_VERSION_1 = 32 };

/* 5.1.4: device configuration. */
enum { NET_MAC = 0, NET_STATUS = 6, NET_STATUS_LINK_UP = 1 };

/* 2.7: split virtqueues. */
enum { DESCRIPTOR_DEVICE_WRITES = 2, AVAILABLE_NO_INTERRUPT = 1 };

struct virtq_descriptor {
    uint64_t address;
    uint32_t length;
    uint16_t flags, next;
};
struct virtq_available {
    uint16_t flags, index;
    uint16_t ring[];
};
struct virtq_used_element {
    uint32_t id, length;
};
struct virtq_used {
    uint16_t flags, index;
    struct virtq_used_element ring[];
};
_Static_assert(sizeof(struct virtq_descriptor) == 16 && sizeof(struct virtq_used_element) == 8, "virtqueue");

/* 5.1.6: in front of every frame. */
struct virtio_net_header {
    uint8_t flags, gso_type;
    uint16_t header_length, gso_size, checksum_start, checksum_offset, buffers;
};
_Static_assert(sizeof(struct virtio_net_header) == 12, "header");

#endif
