/* nic.h: what a NIC driver sees of its device, and how drivers are found.
 *
 * A driver gets registers and DMA memory through struct nic_device: the PCI device on bare metal, a device
 * model in tests; it knows neither PCI enumeration nor page tables. It gives a struct nic (duck/platform.h).
 * All drivers poll; rings are re-armed with every recv(); a frame that is not whole is counted and dropped,
 * never fatal. Called by core 0 only. What drivers of descriptor rings share is in ring.h. */
#ifndef DUCK_NIC_NIC_H
#define DUCK_NIC_NIC_H

#include "duck/platform.h"

struct nic_device {
    void *self;
    uint32_t (*config)(void *self, uint32_t offset, uint32_t bytes); // PCI configuration space
    /* Registers of a memory BAR, naturally aligned, 1, 2, 4 or 8 bytes. */
    uint64_t (*read)(void *self, uint32_t bar, uint32_t offset, uint32_t bytes);
    void (*write)(void *self, uint32_t bar, uint32_t offset, uint32_t bytes, uint64_t value);
    /* Zeroed memory that the device can reach, 4 KiB-aligned; *address is what the device calls it. */
    void *(*memory)(void *self, size_t bytes, uint64_t *address);
    /* The device may reach memory from now on. Called once by open(): after the reset that ended whatever a
     * boot loader had left running, with the rings in memory, before the device is told to use them. */
    void (*allow_dma)(void *self);
    uint64_t (*now)(void *self); // nanoseconds
};

enum {
    NIC_RING = 256, // descriptors of a ring
    /* Bytes of a frame's buffer: whole kilobytes (igc), below 16 KiB (rtl8125), and no power of two, so that
     * the beginnings of frames do not share a few sets of the caches. */
    NIC_BUFFER = 10240,
    NIC_BATCH = 64, // frames of one recv() at most
    NIC_FRAME_MIN = 14,
    NIC_MTU = 9000, // what every driver takes; hosts send it only if their flock's file asks for it
    NIC_FRAME_MAX = NIC_MTU + NIC_FRAME_MIN,
};

struct nic_driver {
    const char *name;
    uint16_t vendor;
    uint16_t device[16]; // ends with 0
    /* Resets the device and starts it. 0, or -1 and *why. One device per driver. */
    int (*open)(struct nic *out, const struct nic_device *d, const char **why);
};

extern const struct nic_driver virtio_net_driver, e1000e_driver, rtl8125_driver, igc_driver;

/* Order of memory between CPU and device. x86 keeps stores in order and loads in order; what is left is the
 * compiler, and a store before a load of the same ring. */
static inline void nic_barrier(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void nic_rest(const struct nic_device *d, uint64_t ns)
{
    uint64_t start = d->now(d->self);
    while (d->now(d->self) - start < ns) {
    }
}

struct nic_register {
    uint32_t bar, offset, bytes;
};

/* Until the masked register has the value. 0, or -1 when that takes longer than ns. */
static inline int nic_wait_for(const struct nic_device *d, struct nic_register r, uint32_t mask,
                               uint32_t value, uint64_t ns)
{
    uint64_t start = d->now(d->self);
    for (;;) {
        int late = d->now(d->self) - start > ns; // before the look: whoever was held up looks once more
        if (((uint32_t)d->read(d->self, r.bar, r.offset, r.bytes) & mask) == value) return 0;
        if (late) return -1;
    }
}

#endif
