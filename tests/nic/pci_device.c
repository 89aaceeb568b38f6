/* pci_device.c: a NIC model as a PCI device of a QEMU guest, in a process of its own.
 *
 *   nic-pci MODEL[:unplugged] MAC LOCAL PEER qemu-system-x86_64 ARGUMENT...
 *
 * Starts QEMU with one more device, x-pci-proxy-dev, and answers what it asks over a socket: configuration
 * space, BAR accesses, the guest's memory (which must be a shared file: -object
 * memory-backend-memfd,share=on). The wire are UDP datagrams, a frame each, between ports LOCAL and PEER of
 * 127.0.0.1, as QEMU's -netdev socket,udp= has them. What the model rejects ends the device with a line; the
 * guest's QEMU ends with this process and this one with it, unless the guest has switched itself off with the
 * device armed: then a magic packet from any port of this host starts QEMU again, as power that comes back.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/nic/model.h"

/* The protocol: QEMU 7.2, include/hw/remote/mpqemu-link.h. */
enum { SYNC_MEMORY, RETURN, CONFIG_WRITE, CONFIG_READ, BAR_WRITE, BAR_READ, SET_INTERRUPT, DEVICE_RESET };
enum { REGIONS = 8, CONFIG_BYTES = 4096 };
struct message {
    int command;
    size_t size; // of what follows
    union {
        uint64_t value;
        struct {
            uint32_t address, value;
            int bytes;
        } config;
        struct {
            uint64_t address[REGIONS], bytes[REGIONS];
            off_t offset[REGIONS];
        } memory;
        struct {
            uint64_t address, value;
            unsigned bytes;
            _Bool is_memory;
        } bar;
    } u;
    int fd[REGIONS];
    int fds;
};
enum { HEADER = offsetof(struct message, u) };

/* PCI local bus 3.0, 6.1. */
enum {
    PCI_ID = 0x00,
    PCI_COMMAND = 0x04,
    PCI_STATUS = 0x06,
    PCI_CLASS = 0x0a,
    PCI_BAR0 = 0x10,
    PCI_SUBSYSTEM = 0x2c,
    PCI_CAPABILITIES = 0x34,
};
/* What the device rejects at its PCI side. */
static const struct nic_source by_master = {RULE_STATED,
                                            "PCI local bus 3.0, 6.2.2: bit 2 of the command register"};
static const struct nic_source by_power = {
    RULE_STATED, "PCI power management 1.2, 5.4.1: in D3hot only configuration space answers"};
static const struct nic_source by_link = {
    RULE_STATED, "r8169 rtl_init_one (comment): ASPM makes some of these devices stop"};
static const struct nic_source by_order = {
    RULE_OWN, "a device that still runs writes where a boot loader told it to: it is reset first"};

enum { CLASS_ETHERNET = 0x0200, COMMAND_WRITABLE = 0x0547, COMMAND_MASTER = 4, STATUS_CAPABILITIES = 0x10 };

/* Two capabilities: PCI power management 1.2, 3.2; PCI Express base 5.0, 7.5.3. */
enum {
    POWER = 0x40,
    POWER_ID = 0x01,
    POWER_CONTROL = POWER + 4,
    POWER_STATE = 3,
    POWER_EVENT_D3 = 0xc000, // capabilities: from D3hot and D3cold
    POWER_EVENT_ENABLE = 1 << 8,
    POWER_EVENT = 1 << 15, // written ones are cleared
    EXPRESS = 0x50,
    EXPRESS_ID = 0x10,
    LINK_CONTROL = EXPRESS + 0x10,
    LINK_ASPM = 3,
};

static struct {
    const struct nic_model *model;
    uint8_t mac[6];
    int qemu, wire; // sockets
    uint8_t config[CONFIG_BYTES], writable[CONFIG_BYTES];
    struct {
        uint64_t address, bytes;
        uint8_t *at;
    } region[REGIONS];
    uint32_t regions;
    int unplugged;
    int has_slept;          // since it has an address
    int was_quiet;          // since power-on: the boot loader's traffic has ended
    uint64_t in, lost, out; // frames
    uint32_t woken;
} the;

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "nic-pci: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- struct nic_bus ---- */

static void bus_reject(void *self, const char *what, const struct nic_source *by)
{
    (void)self;
    fprintf(stderr, "nic-pci: %s rejected: %s (%s)\n", the.model->name, what, by->where);
    exit(3);
}

static uint8_t *bus_dma(void *self, uint64_t address, uint32_t bytes)
{
    (void)self;
    if (!(the.config[PCI_COMMAND] & COMMAND_MASTER))
        bus_reject(NULL, "DMA before the device is a bus master", &by_master);
    for (uint32_t i = 0; i < the.regions; i++)
        if (address >= the.region[i].address &&
            address + bytes <= the.region[i].address + the.region[i].bytes)
            return the.region[i].at + (address - the.region[i].address);
    return NULL;
}

static void bus_sent(void *self, const uint8_t *frame, uint32_t bytes)
{
    (void)self;
    the.out++;
    if (send(the.wire, frame, bytes, 0) < 0 && errno != ECONNREFUSED && errno != EAGAIN) fail("wire");
}

/* ---- configuration space ---- */

static void put(uint32_t offset, uint32_t bytes, uint32_t value, uint32_t writable)
{
    memcpy(the.config + offset, &value, bytes);
    memcpy(the.writable + offset, &writable, bytes);
}

/* Asleep, as the firmware's driver may have left it, and with a link that may sleep. */
static void power_on(void)
{
    static const struct nic_bus bus = {NULL, bus_dma, bus_sent, bus_reject};
    memset(the.config, 0, sizeof the.config);
    memset(the.writable, 0, sizeof the.writable);
    put(PCI_ID, 4, (uint32_t)the.model->device << 16 | the.model->vendor, 0);
    put(PCI_COMMAND, 2, 0, COMMAND_WRITABLE);
    put(PCI_CLASS, 2, CLASS_ETHERNET, 0);
    put(PCI_SUBSYSTEM, 4, (uint32_t)the.model->device << 16 | the.model->vendor, 0);
    put(PCI_BAR0 + 4 * the.model->bar, 4, 0, ~(the.model->bar_bytes - 1));
    put(PCI_STATUS, 2, STATUS_CAPABILITIES, 0);
    put(PCI_CAPABILITIES, 1, POWER, 0);
    put(POWER, 4, (uint32_t)(POWER_EVENT_D3 | 3) << 16 | EXPRESS << 8 | POWER_ID, 0);
    put(POWER_CONTROL, 2, POWER_STATE, POWER_STATE | POWER_EVENT_ENABLE);
    put(EXPRESS, 4, 2 << 16 | EXPRESS_ID, 0); // an endpoint
    put(LINK_CONTROL, 2, LINK_ASPM, 0x01ff);
    the.has_slept = the.was_quiet = 0;
    the.model->power_on(&bus, 0, the.mac);
    if (the.unplugged) the.model->set_link(0);
}

static uint32_t config_read(uint32_t address, uint32_t bytes)
{
    uint32_t value = 0;
    if (address + bytes <= CONFIG_BYTES && bytes <= 4) memcpy(&value, the.config + address, bytes);
    return value;
}

/* Waking up from D3hot resets the function, BARs included, unless it says otherwise (No_Soft_Reset). OVMF
 * wakes what it finds, then gives it its address; a driver of OVMF would put it to sleep again when it lets
 * go, but there is none for this device: it goes to sleep by itself, once it has an address. */
static void config_write(uint32_t address, uint32_t bytes, uint32_t value)
{
    uint32_t bar = PCI_BAR0 + 4 * the.model->bar, slept = the.config[POWER_CONTROL] & POWER_STATE;
    for (uint32_t i = 0; i < bytes && address + i < CONFIG_BYTES; i++) {
        uint8_t *c = &the.config[address + i], can = the.writable[address + i];
        *c = (uint8_t)((*c & ~can) | (value >> 8 * i & can));
    }
    if (slept && !(the.config[POWER_CONTROL] & POWER_STATE)) memset(the.config + PCI_BAR0, 0, 24);
    if (address == bar && value && value != UINT32_MAX && !the.has_slept) {
        the.has_slept = 1;
        the.config[POWER_CONTROL] |= POWER_STATE;
    }
}

/* Asleep, and a magic packet may wake the machine up. */
static int is_armed(void)
{
    return (the.config[POWER_CONTROL] & POWER_STATE) == POWER_STATE &&
           config_read(POWER_CONTROL, 2) & POWER_EVENT_ENABLE;
}

/* Before a register is touched. OVMF has no driver for this device, and may let it do what it likes; the one
 * that comes takes bus mastering away, and gives it back after the reset. */
static void check_access(void)
{
    if (!the.model->is_running()) the.was_quiet = 1;
    if (!the.was_quiet && the.config[PCI_COMMAND] & COMMAND_MASTER)
        bus_reject(NULL, "bus mastering before the reset", &by_order);
    if (the.config[POWER_CONTROL] & POWER_STATE)
        bus_reject(NULL, "registers of a device that sleeps", &by_power);
    if (the.config[LINK_CONTROL] & LINK_ASPM)
        bus_reject(NULL, "registers behind a link that may sleep", &by_link);
}

/* ---- QEMU's questions ---- */

/* 0, or -1 when QEMU has gone. */
static int receive(struct message *m)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * REGIONS)];
        struct cmsghdr align;
    } control;
    struct iovec part = {m, HEADER};
    struct msghdr h = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    memset(m, 0, sizeof *m);
    if (recvmsg(the.qemu, &h, MSG_WAITALL) != HEADER) return -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&h); c; c = CMSG_NXTHDR(&h, c)) {
        if (c->cmsg_type != SCM_RIGHTS) continue;
        m->fds = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(m->fd, CMSG_DATA(c), (size_t)m->fds * sizeof(int));
    }
    if (m->size > sizeof m->u) return -1;
    return m->size && recv(the.qemu, &m->u, m->size, MSG_WAITALL) != (ssize_t)m->size ? -1 : 0;
}

static void answer(uint64_t value, size_t bytes)
{
    struct message m;
    memset(&m, 0, sizeof m);
    m.command = RETURN;
    m.size = bytes;
    m.u.value = value;
    if (write(the.qemu, &m, HEADER + bytes) < 0) fail("QEMU");
}

static void sync_memory(const struct message *m)
{
    for (uint32_t i = 0; i < the.regions; i++) munmap(the.region[i].at, the.region[i].bytes);
    the.regions = 0;
    for (int i = 0; i < m->fds; i++) {
        void *at = mmap(NULL, m->u.memory.bytes[i], PROT_READ | PROT_WRITE, MAP_SHARED, m->fd[i],
                        m->u.memory.offset[i]);
        close(m->fd[i]);
        if (at == MAP_FAILED) fail("the guest's memory");
        the.region[the.regions].address = m->u.memory.address[i];
        the.region[the.regions].bytes = m->u.memory.bytes[i];
        the.region[the.regions++].at = at;
    }
}

/* The offset of an access into the BAR with the registers; UINT32_MAX: elsewhere. */
static uint32_t offset_of(const struct message *m)
{
    uint64_t base = config_read(PCI_BAR0 + 4 * the.model->bar, 4) & ~15u, at = m->u.bar.address;
    int inside = m->u.bar.is_memory && at >= base && at + m->u.bar.bytes <= base + the.model->bar_bytes;
    return inside ? (uint32_t)(at - base) : UINT32_MAX;
}

static void serve(const struct message *m)
{
    uint32_t offset;
    switch (m->command) {
    case SYNC_MEMORY:
        sync_memory(m);
        break;
    case CONFIG_READ:
        answer(config_read(m->u.config.address, (uint32_t)m->u.config.bytes), 8);
        break;
    case CONFIG_WRITE:
        config_write(m->u.config.address, (uint32_t)m->u.config.bytes, m->u.config.value);
        answer(0, 8);
        break;
    case BAR_READ:
        offset = offset_of(m);
        if (offset != UINT32_MAX) check_access();
        answer(offset == UINT32_MAX ? UINT64_MAX : the.model->read(offset, m->u.bar.bytes), 8);
        break;
    case BAR_WRITE:
        offset = offset_of(m);
        if (offset != UINT32_MAX) {
            check_access();
            the.model->write(offset, m->u.bar.bytes, m->u.bar.value);
        }
        answer(0, 8);
        the.model->transmit(UINT32_MAX);
        break;
    case DEVICE_RESET:
        power_on();
        answer(0, 0);
        break;
    default: // interrupts: the drivers poll
        for (int i = 0; i < m->fds; i++) close(m->fd[i]);
    }
}

static void take_frame(void)
{
    static uint8_t frame[65536];
    ssize_t n = recv(the.wire, frame, sizeof frame, MSG_DONTWAIT);
    if (n <= 0) return;
    if (n < 60) { // a real wire has no shorter ones; QEMU's does
        memset(frame + n, 0, (size_t)(60 - n));
        n = 60;
    }
    if (is_armed()) {
        the.woken += (uint32_t)the.model->wakes(frame, (uint32_t)n);
        return;
    }
    if (the.model->arrive(frame, (uint32_t)n, ARRIVES_WELL))
        the.in++;
    else
        the.lost++;
}

/* ---- start ---- */

/* Of port `local`, to and from `peer` only; 0: from every port. */
static void open_wire(uint16_t local, uint16_t peer)
{
    int bytes = 4 << 20; // a burst of the host's waits here, as it would in the device's own memory
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (the.wire > 0) close(the.wire);
    the.wire = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    a.sin_port = htons(local);
    if (the.wire < 0 || bind(the.wire, (struct sockaddr *)&a, sizeof a)) fail("wire");
    a.sin_port = htons(peer);
    if (peer && connect(the.wire, (struct sockaddr *)&a, sizeof a)) fail("wire");
    setsockopt(the.wire, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

static void start_qemu(int count, char **argument)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) fail("socketpair");
    pid_t parent = getpid(), child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        char device[64];
        char **all = calloc((size_t)count + 3, sizeof *all);
        close(pair[0]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!all || getppid() != parent) _exit(1);
        memcpy(all, argument, (size_t)count * sizeof *all);
        snprintf(device, sizeof device, "x-pci-proxy-dev,id=modelled,fd=%d", pair[1]);
        all[count] = (char[]){"-device"};
        all[count + 1] = device;
        execvp(all[0], all);
        fail(all[0]);
    }
    close(pair[1]);
    the.qemu = pair[0];
}

/* Until QEMU has gone. */
static void run(void)
{
    for (;;) {
        struct message question;
        struct pollfd p[] = {{.fd = the.qemu, .events = POLLIN}, {.fd = the.wire, .events = POLLIN}};
        if (poll(p, 2, -1) < 0 && errno != EINTR) fail("poll");
        if (p[1].revents) take_frame();
        if (!p[0].revents) continue;
        if (receive(&question)) break;
        serve(&question);
    }
    for (uint32_t i = 0; i < the.regions; i++) munmap(the.region[i].at, the.region[i].bytes);
    the.regions = 0;
}

/* The machine is off, the device listens. 0: nobody has woken it up for a while. */
static int sleep_until_woken(uint16_t local)
{
    enum { PATIENCE_MS = 120000 };
    open_wire(local, 0);
    fprintf(stderr, "nic-pci: off, waits for a magic packet\n");
    for (uint32_t before = the.woken; the.woken == before;) {
        struct pollfd p = {.fd = the.wire, .events = POLLIN};
        if (poll(&p, 1, PATIENCE_MS) <= 0) return 0;
        uint32_t had = the.woken;
        take_frame();
        fprintf(stderr, "nic-pci: %s\n",
                the.woken > had ? "woken by a magic packet" : "a frame does not wake it");
    }
    return 1;
}

int main(int count, char **argument)
{
    static const struct nic_model *const models[] = {&rtl8125_model, &igc_model, NULL};
    if (count < 6) {
        fprintf(stderr, "usage: nic-pci MODEL[:unplugged] MAC LOCAL PEER qemu-system-x86_64 ARGUMENT...\n");
        return 2;
    }
    char *model = argument[1], *suffix = strchr(model, ':');
    if (suffix && strcmp(suffix, ":unplugged") == 0) {
        *suffix = 0;
        the.unplugged = 1;
    }
    for (uint32_t i = 0; models[i]; i++)
        if (strcmp(models[i]->name, model) == 0) the.model = models[i];
    unsigned m[6];
    if (!the.model ||
        sscanf(argument[2], "%x:%x:%x:%x:%x:%x", &m[0], &m[1], &m[2], &m[3], &m[4], &m[5]) != 6) {
        fprintf(stderr, "nic-pci: no model '%s', or '%s' is no MAC address\n", argument[1], argument[2]);
        return 2;
    }
    for (uint32_t i = 0; i < 6; i++) the.mac[i] = (uint8_t)m[i];
    uint16_t local = (uint16_t)strtoul(argument[3], NULL, 10),
             peer = (uint16_t)strtoul(argument[4], NULL, 10);
    do {
        open_wire(local, peer);
        power_on();
        start_qemu(count - 5, argument + 5);
        run();
        wait(NULL);
        close(the.qemu);
    } while (is_armed() && sleep_until_woken(local));
    fprintf(stderr, "nic-pci: %s: %llu frames in, %llu not taken, %llu out\n", the.model->name,
            (unsigned long long)the.in, (unsigned long long)the.lost, (unsigned long long)the.out);
    return 0;
}
