/* pci.c: scanning for a NIC, its BARs, and struct nic_device over them. */
#include "duck/uefi/pci.h"

#include <string.h>

#include "duck/uefi/clock.h"
#include "duck/uefi/console.h"

/* PCI local bus 3.0, chapter 6. */
enum {
    CONFIG_ID = 0x00,
    CONFIG_COMMAND = 0x04,
    COMMAND_MEMORY = 2,
    COMMAND_MASTER = 4,
    COMMAND_NO_INTX = 1 << 10,
    CONFIG_CLASS = 0x0b,
    CLASS_DISPLAY = 3,
    CONFIG_HEADER_TYPE = 0x0e,
    HEADER_ENDPOINT = 0, // without the bit below
    HEADER_MULTI_FUNCTION = 0x80,
    CONFIG_BAR0 = 0x10,
    BARS = 6,
    BAR_PORTS = 1,
    BAR_TYPE_64 = 4,
    BAR_TYPE_MASK = 6,
    STATUS_CAPABILITIES = 1 << 4,
    CONFIG_STATUS = 0x06,
    CONFIG_CAPABILITIES = 0x34,
};

/* PCI power management 1.2, 3.2; PCI Express base 5.0, 7.5.3.7: offsets into a capability. */
enum {
    CAPABILITY_POWER = 0x01,
    POWER_CAPABILITIES = 0x02,
    POWER_EVENT_D3 = 3 << 14, // can ask for power in D3hot, D3cold
    POWER_CONTROL = 0x04,
    POWER_STATE = 3, // 0: D0, awake; 3: D3hot
    POWER_EVENT_ENABLE = 1 << 8,
    POWER_EVENT = 1 << 15,  // cleared by writing it
    WAKE_NS = 10 * 1000000, // 5.4: from D3hot
    CAPABILITY_EXPRESS = 0x10,
    EXPRESS_LINK_CONTROL = 0x10,
    LINK_ASPM = 3,
};

static struct {
    volatile uint8_t *config;    // 4 KiB of the NIC
    volatile uint8_t *bar[BARS]; // NULL: none
    uint64_t bar_bytes[BARS];
    uint8_t *dma; // (BOOT_DMA): for the NIC that is open
    size_t dma_used;
    const struct nic *nic; // that was chosen
} the;

static volatile uint8_t *function_at(const struct acpi *a, uint32_t bus, uint32_t device, uint32_t function)
{
    uint64_t at = a->ecam + ((uint64_t)bus << 20 | device << 15 | function << 12);
    return (volatile uint8_t *)(uintptr_t)at;
}

static uint32_t config32(volatile uint8_t *c, uint32_t offset)
{
    return *(volatile uint32_t *)(c + offset);
}

static void set_config32(volatile uint8_t *c, uint32_t offset, uint32_t v)
{
    *(volatile uint32_t *)(c + offset) = v;
}

static void set_command(volatile uint8_t *c, uint32_t on, uint32_t off)
{
    uint32_t v = config32(c, CONFIG_COMMAND) & 0xffff; // the status half clears bits that are written
    set_config32(c, CONFIG_COMMAND, (v | on) & ~off);
}

/* One memory BAR: its address and size. Returns how many BAR slots it takes. */
static uint32_t read_bar(volatile uint8_t *c, uint32_t i, uint64_t *address, uint64_t *bytes)
{
    uint32_t at = CONFIG_BAR0 + 4 * i, low = config32(c, at), high = 0, low_size, high_size = UINT32_MAX;
    int is_64 = (low & BAR_TYPE_MASK) == BAR_TYPE_64 && !(low & BAR_PORTS) && i + 1 < BARS;
    *address = *bytes = 0;
    if (low & BAR_PORTS) return 1;
    set_config32(c, at, UINT32_MAX);
    low_size = config32(c, at);
    set_config32(c, at, low);
    if (is_64) {
        high = config32(c, at + 4);
        set_config32(c, at + 4, UINT32_MAX);
        high_size = config32(c, at + 4);
        set_config32(c, at + 4, high);
    }
    if (low_size & ~15u || (is_64 && high_size))
        *bytes = ~((uint64_t)high_size << 32 | (low_size & ~15u)) + 1;
    *address = (uint64_t)high << 32 | (low & ~15u);
    return is_64 ? 2 : 1;
}

/* -1: an address that cannot be mapped. */
static int map_bars(struct paging *paging)
{
    set_command(the.config, 0, COMMAND_MEMORY | COMMAND_MASTER); // while sizes are asked for
    for (uint32_t i = 0; i < BARS;) {
        uint64_t address, bytes;
        uint32_t slots = read_bar(the.config, i, &address, &bytes);
        if (address && bytes) {
            uint64_t start = address & ~(uint64_t)4095, end = (address + bytes + 4095) & ~(uint64_t)4095;
            if (paging_map(paging, start, start, end - start, PAGE_WRITE | PAGE_NO_EXECUTE | PAGE_UNCACHED))
                return -1;
            the.bar[i] = (volatile uint8_t *)(uintptr_t)address;
            the.bar_bytes[i] = bytes;
        }
        i += slots;
    }
    set_command(the.config, COMMAND_MEMORY | COMMAND_NO_INTX, 0); // DMA: device_allow_dma()
    return 0;
}

/* Where a capability begins; 0: the device has none of that kind. */
static uint32_t find_capability(volatile uint8_t *c, uint8_t id)
{
    enum { MOST = 48 }; // that fit; a loop ends
    if (!(c[CONFIG_STATUS] & STATUS_CAPABILITIES)) return 0;
    uint32_t at = c[CONFIG_CAPABILITIES] & 0xfc;
    for (int i = 0; at && i < MOST; i++, at = c[at + 1] & 0xfc)
        if (c[at] == id) return at;
    return 0;
}

/* The firmware's driver may have put the device to sleep when it let go. Waking up may reset it, so that it
 * forgets its BARs: they are written again. */
static void wake_up(volatile uint8_t *c)
{
    uint32_t at = find_capability(c, CAPABILITY_POWER), bar[BARS];
    if (!at || !(config32(c, at + POWER_CONTROL) & POWER_STATE)) return;
    for (uint32_t i = 0; i < BARS; i++) bar[i] = config32(c, CONFIG_BAR0 + 4 * i);
    set_config32(c, at + POWER_CONTROL,
                 config32(c, at + POWER_CONTROL) & ~(uint32_t)(POWER_STATE | POWER_EVENT));
    clock_delay(WAKE_NS);
    for (uint32_t i = 0; i < BARS; i++) set_config32(c, CONFIG_BAR0 + 4 * i, bar[i]);
}

/* A link that sleeps between frames costs latency, and there are RTL8125 that do not wake up (Linux r8169
 * switches it off for that reason). It needs both ends: switching it off at ours suffices. */
static void keep_link_awake(volatile uint8_t *c)
{
    uint32_t at = find_capability(c, CAPABILITY_EXPRESS);
    if (!at) return;
    at += EXPRESS_LINK_CONTROL;
    set_config32(c, at, config32(c, at) & 0xffff & ~(uint32_t)LINK_ASPM); // the upper half is status
}

/* ---- struct nic_device ---- */

static uint32_t device_config(void *self, uint32_t offset, uint32_t bytes)
{
    (void)self;
    if (bytes == 1) return the.config[offset];
    if (bytes == 2) return *(volatile uint16_t *)(the.config + offset);
    return config32(the.config, offset);
}

static int is_inside(uint32_t bar, uint32_t offset, uint32_t bytes)
{
    return bar < BARS && the.bar[bar] && offset + (uint64_t)bytes <= the.bar_bytes[bar];
}

static uint64_t device_read(void *self, uint32_t bar, uint32_t offset, uint32_t bytes)
{
    (void)self;
    if (!is_inside(bar, offset, bytes)) return UINT64_MAX; // what a bus without a device answers
    volatile uint8_t *p = the.bar[bar] + offset;
    switch (bytes) {
    case 1:
        return *p;
    case 2:
        return *(volatile uint16_t *)p;
    case 4:
        return *(volatile uint32_t *)p;
    default:
        return *(volatile uint64_t *)p;
    }
}

static void device_write(void *self, uint32_t bar, uint32_t offset, uint32_t bytes, uint64_t v)
{
    (void)self;
    if (!is_inside(bar, offset, bytes)) return;
    volatile uint8_t *p = the.bar[bar] + offset;
    switch (bytes) {
    case 1:
        *p = (uint8_t)v;
        break;
    case 2:
        *(volatile uint16_t *)p = (uint16_t)v;
        break;
    case 4:
        *(volatile uint32_t *)p = (uint32_t)v;
        break;
    default: // two halves, as every device takes them
        *(volatile uint32_t *)p = (uint32_t)v;
        *(volatile uint32_t *)(p + 4) = (uint32_t)(v >> 32);
    }
}

static void *device_memory(void *self, size_t bytes, uint64_t *address)
{
    (void)self;
    bytes = (bytes + 4095) / 4096 * 4096;
    if (bytes > BOOT_DMA - the.dma_used) return NULL;
    void *p = the.dma + the.dma_used;
    the.dma_used += bytes;
    memset(p, 0, bytes);
    *address = (uint64_t)(uintptr_t)p; // mapped at its own address
    return p;
}

static void device_allow_dma(void *self)
{
    (void)self;
    set_command(the.config, COMMAND_MASTER, 0);
}

static uint64_t device_now(void *self)
{
    (void)self;
    return clock_now();
}

/* ---- scan ---- */

static const struct nic_driver *driver_of(uint32_t id)
{
    static const struct nic_driver *const drivers[] = {&virtio_net_driver, &e1000e_driver, &rtl8125_driver,
                                                       &igc_driver};
    for (uint32_t i = 0; i < sizeof drivers / sizeof *drivers; i++)
        for (const uint16_t *d = drivers[i]->device; *d; d++)
            if (id == ((uint32_t)*d << 16 | drivers[i]->vendor)) return drivers[i];
    return NULL;
}

struct candidate {
    volatile uint8_t *config;
    const struct nic_driver *driver;
    uint32_t bus, device, function;
};
enum {
    MOST_NICS = 8,
    SILENCE_NS = 1000000, // for DMA that is on its way
};

typedef void visit_fn(void *ctx, const struct candidate *at);

static void visit_functions(const struct acpi *a, visit_fn *visit, void *ctx)
{
    for (uint32_t bus = a->first_bus; bus <= a->last_bus; bus++)
        for (uint32_t device = 0; device < 32; device++)
            for (uint32_t function = 0; function < 8; function++) {
                volatile uint8_t *c = function_at(a, bus, device, function);
                uint32_t id = config32(c, CONFIG_ID);
                if (id == UINT32_MAX && function == 0) break;
                if (id != UINT32_MAX)
                    visit(ctx, &(struct candidate){c, driver_of(id), bus, device, function});
                if (function == 0 && !(c[CONFIG_HEADER_TYPE] & HEADER_MULTI_FUNCTION)) break;
            }
}

struct nics {
    struct candidate nic[MOST_NICS];
    uint32_t count;
};

static void note_nic(void *ctx, const struct candidate *at)
{
    struct nics *n = ctx;
    if (at->driver && n->count < MOST_NICS) n->nic[n->count++] = *at;
}

static void end_dma(void *ctx, const struct candidate *at)
{
    (void)ctx;
    if ((at->config[CONFIG_HEADER_TYPE] & ~HEADER_MULTI_FUNCTION) != HEADER_ENDPOINT) return;
    if (at->config[CONFIG_CLASS] != CLASS_DISPLAY) set_command(at->config, 0, COMMAND_MASTER);
}

static int open_nic(const struct candidate *n, struct nic *out, struct paging *paging)
{
    static const struct nic_device device = {NULL,          device_config,    device_read, device_write,
                                             device_memory, device_allow_dma, device_now};
    const char *why = "a BAR cannot be mapped";
    the.config = n->config;
    the.dma_used = 0;
    memset(the.bar, 0, sizeof the.bar);
    memset(the.bar_bytes, 0, sizeof the.bar_bytes);
    wake_up(n->config);
    keep_link_awake(n->config);
    if (map_bars(paging) == 0 && n->driver->open(out, &device, &why) == 0) return 0;
    say("%s at %u:%u.%u: %s", n->driver->name, n->bus, n->device, n->function, why);
    set_command(n->config, 0, COMMAND_MASTER);
    return -1;
}

/* The device keeps its rings, but its DMA ends: their memory is the next one's. */
static void close_nic(const struct candidate *n)
{
    set_command(n->config, 0, COMMAND_MASTER);
    clock_delay(SILENCE_NS);
}

static int has_link(const struct nic *n, uint64_t ns)
{
    uint64_t start = clock_now();
    do
        if (n->link_mbps(n->self)) return 1;
    while (clock_now() - start < ns);
    return 0;
}

/* Among several NICs the first one with a link: at first look (the one that has booted us still has its own),
 * then with the time that it takes to negotiate one. Nobody has: the first one that opens, its link may come.
 */
static const struct nic_driver *choose(const struct candidate *nic, uint32_t count, struct nic *out,
                                       struct paging *paging)
{
    static const uint64_t patience_ns[] = {0, 6000000000};
    for (uint32_t pass = 0; count > 1 && pass < 2; pass++)
        for (uint32_t i = 0; i < count; i++) {
            if (open_nic(&nic[i], out, paging)) continue;
            if (has_link(out, patience_ns[pass])) return nic[i].driver;
            say("%s at %u:%u.%u: no link", nic[i].driver->name, nic[i].bus, nic[i].device, nic[i].function);
            close_nic(&nic[i]);
        }
    for (uint32_t i = 0; i < count; i++)
        if (open_nic(&nic[i], out, paging) == 0) return nic[i].driver;
    return NULL;
}

int pci_start(const struct acpi *a, struct paging *paging)
{
    if (!a->ecam) {
        say("no MCFG table: no way to PCI configuration space");
        return -1;
    }
    uint64_t start = a->ecam + ((uint64_t)a->first_bus << 20);
    uint64_t bytes = (uint64_t)(a->last_bus - a->first_bus + 1) << 20;
    if (paging_map(paging, start, start, bytes, PAGE_WRITE | PAGE_NO_EXECUTE | PAGE_UNCACHED)) {
        say("no room to map PCI configuration space");
        return -1;
    }
    visit_functions(a, end_dma, NULL);
    clock_delay(SILENCE_NS);
    return 0;
}

const struct nic_driver *pci_open_nic(struct nic *out, struct boot *boot, struct paging *paging)
{
    struct nics found = {.count = 0};
    the.dma = boot_pool_take(&boot->pool, BOOT_DMA);
    if (!the.dma) {
        say("no room for a NIC's memory");
        return NULL;
    }
    visit_functions(&boot->acpi, note_nic, &found);
    const struct nic_driver *driver = choose(found.nic, found.count, out, paging);
    if (driver)
        the.nic = out;
    else
        say("no NIC that a driver knows");
    return driver;
}

/* PCI power management 1.2, 3.2.4 and 5.6: with the event enabled, then asleep; what happened before is
 * forgotten. */
const char *pci_arm_wake(void)
{
    if (!the.nic) return "no NIC";
    if (!the.nic->arm_wake) return "this NIC's driver cannot";
    uint32_t at = find_capability(the.config, CAPABILITY_POWER);
    uint32_t can = at ? config32(the.config, at) >> 8 * POWER_CAPABILITIES : 0;
    if (!(can & POWER_EVENT_D3)) return "this NIC cannot ask for power";
    if (the.nic->arm_wake(the.nic->self)) return "the NIC does not answer";
    set_command(the.config, 0, COMMAND_MASTER);
    set_config32(the.config, at + POWER_CONTROL,
                 (config32(the.config, at + POWER_CONTROL) & ~(uint32_t)POWER_STATE) | POWER_EVENT |
                     POWER_EVENT_ENABLE | POWER_STATE);
    return NULL;
}
