/* exercise.c: see the header. Frames carry their number, so that order and content can be checked wherever
 * they come out; DMA addresses are beyond 4 GiB and are no pointers, so that a lost half or a mix-up shows.
 */
#include "tests/nic/exercise.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECES = 16,
    MOST_FRAMES = 4096,
    BATCH = 32,
    WIRE_MIN = 60,
    CALL_NS = 10000,
    NIC_FRAME = NIC_FRAME_MAX
};
#define DMA_BASE ((uint64_t)0x240000000)
#define DMA_STEP ((uint64_t)0x1000000)

static const uint8_t mac[6] = {0x02, 0x11, 0x22, 0x33, 0x44, 0x55};

static struct {
    const struct nic_model *model;
    const struct nic_driver *driver;
    struct nic nic;
    jmp_buf out;
    char complaint[400];
    int dma_allowed;
    uint64_t ns;
    struct {
        uint8_t *data;
        size_t bytes;
    } piece[PIECES];
    uint32_t pieces;
    uint32_t expected[MOST_FRAMES]; // bytes of the frames that were given to send(), by their number
    uint32_t given, sent;
} the;

static _Noreturn void complain(const char *what)
{
    snprintf(the.complaint, sizeof the.complaint, "%s", what);
    longjmp(the.out, 1);
}

static void check(int well, const char *otherwise)
{
    if (!well) complain(otherwise);
}

static void check_number(uint64_t is, uint64_t must, const char *what)
{
    if (is == must) return;
    snprintf(the.complaint, sizeof the.complaint, "%s: %llu, must be %llu", what, (unsigned long long)is,
             (unsigned long long)must);
    longjmp(the.out, 1);
}

/* ---- around the driver: struct nic_device; around the model: struct nic_bus ---- */

static uint32_t device_config(void *self, uint32_t offset, uint32_t bytes)
{
    (void)self;
    (void)bytes;
    return offset == 0 ? (uint32_t)the.model->device << 16 | the.model->vendor : 0;
}

static uint64_t device_read(void *self, uint32_t bar, uint32_t offset, uint32_t bytes)
{
    (void)self;
    check(bar == the.model->bar, "read: not the BAR with the registers");
    return the.model->read(offset, bytes);
}

static void device_write(void *self, uint32_t bar, uint32_t offset, uint32_t bytes, uint64_t value)
{
    (void)self;
    check(bar == the.model->bar, "write: not the BAR with the registers");
    the.model->write(offset, bytes, value);
}

static void *device_memory(void *self, size_t bytes, uint64_t *address)
{
    (void)self;
    check(the.pieces < PIECES, "too many pieces of memory");
    uint8_t *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    memset(p, 0, bytes);
    the.piece[the.pieces].data = p;
    the.piece[the.pieces].bytes = bytes;
    *address = DMA_BASE + DMA_STEP * the.pieces++;
    return p;
}

static void device_allow_dma(void *self)
{
    (void)self;
    check(!the.model->is_running(), "DMA is allowed while the device does what a boot loader told it");
    check(!the.dma_allowed, "DMA is allowed twice");
    the.dma_allowed = 1;
}

static uint64_t device_now(void *self)
{
    (void)self;
    return the.ns += CALL_NS;
}

static uint8_t *bus_dma(void *self, uint64_t address, uint32_t bytes)
{
    (void)self;
    if (!the.dma_allowed) complain("DMA while it is not allowed");
    for (uint32_t i = 0; i < the.pieces; i++) {
        uint64_t start = DMA_BASE + DMA_STEP * i;
        if (address >= start && address + bytes <= start + the.piece[i].bytes)
            return the.piece[i].data + (address - start);
    }
    return NULL;
}

static void bus_reject(void *self, const char *what, const struct nic_source *by)
{
    (void)self;
    snprintf(the.complaint, sizeof the.complaint, "%s (%s)", what, by->where);
    longjmp(the.out, 1);
}

/* ---- frames ---- */

/* Frame number n: to everybody or to us, then its number, then bytes that follow from it. */
static void fill(uint8_t *frame, uint32_t bytes, uint32_t n)
{
    for (uint32_t i = 0; i < bytes; i++) {
        if (i < 6)
            frame[i] = n % 2 ? mac[i] : 255;
        else if (i < 10)
            frame[i] = (uint8_t)(n >> 8 * (i - 6));
        else
            frame[i] = (uint8_t)(n * 13 + i * 7 + 1);
    }
}

static void check_frame(const uint8_t *frame, uint32_t bytes, uint32_t n, const char *what)
{
    static uint8_t must[NIC_FRAME];
    fill(must, bytes, n);
    if (memcmp(frame, must, bytes) != 0) complain(what);
}

static void bus_sent(void *self, const uint8_t *frame, uint32_t bytes)
{
    (void)self;
    check(the.sent < the.given, "a frame was sent that nobody gave");
    uint32_t n = the.sent++, own = the.expected[n];
    check_number(bytes, own < WIRE_MIN ? WIRE_MIN : own, "length of a frame that was sent");
    check_frame(frame, own, n, "a frame was sent with other bytes, or out of order");
    for (uint32_t i = own; i < bytes; i++) check(frame[i] == 0, "padding is not zero");
}

static int arrive(uint32_t bytes, uint32_t n)
{
    static uint8_t frame[16384];
    fill(frame, bytes, n);
    return the.model->arrive(frame, bytes, ARRIVES_WELL);
}

/* Gives `count` frames of so many bytes to send(), in one call; returns how many were taken. */
static uint32_t give(uint32_t count, uint32_t bytes)
{
    static uint8_t data[BATCH][NIC_FRAME];
    struct frame f[BATCH];
    for (uint32_t i = 0; i < count; i++) {
        fill(data[i], bytes, the.given + i);
        f[i] = (struct frame){data[i], bytes};
    }
    uint32_t taken = the.nic.send(the.nic.self, f, count);
    memset(data, 0xee, sizeof data); // the caller uses its memory again
    for (uint32_t i = 0; i < taken; i++) the.expected[the.given++] = bytes;
    return taken;
}

/* All there is: frames numbered from n on, bytes[n % 16] long each; returns how many. */
static uint32_t drain(uint32_t n, const uint32_t bytes[16])
{
    struct frame f[BATCH];
    uint32_t got, total = 0;
    while ((got = the.nic.recv(the.nic.self, f, BATCH))) {
        for (uint32_t i = 0; i < got; i++, total++) {
            check_number(f[i].bytes, bytes[(n + total) % 16], "length of a received frame");
            check_frame(f[i].data, f[i].bytes, n + total,
                        "a received frame has other bytes, or is out of order");
        }
    }
    return total;
}

static const uint32_t sizes[16] = {60,   61,  64,   100,  128, 9014, 700, 256,
                                   1515, 511, 1000, 4100, 63,  9013, 80,  1514};
static const uint32_t smallest[16] = {60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60};

/* The counters as they will be: a driver may take them from its device one call later. */
static struct nic_stats counters(void)
{
    struct nic_stats s;
    for (int i = 0; i < 4; i++) {
        the.nic.stats(the.nic.self, &s);
        the.ns += 10000000;
    }
    return s;
}

static struct nic_device make_device(void)
{
    the.dma_allowed = 0;
    return (struct nic_device){NULL,          device_config,    device_read, device_write,
                               device_memory, device_allow_dma, device_now};
}

static void power_on(uint32_t variant)
{
    static const struct nic_bus bus = {NULL, bus_dma, bus_sent, bus_reject};
    the.model->power_on(&bus, variant, mac);
}

static void open_nic(void)
{
    const char *why = "";
    struct nic_device d = make_device();
    power_on(0);
    if (the.driver->open(&the.nic, &d, &why)) complain(why);
}

/* ---- scenarios ---- */

static void every_revision_opens(void)
{
    for (uint32_t v = 0; v < the.model->variants; v++) {
        const char *why = "";
        struct nic_device d = make_device();
        power_on(v);
        for (; the.pieces > 0; the.pieces--) free(the.piece[the.pieces - 1].data);
        if (the.driver->open(&the.nic, &d, &why)) complain(why);
        check(memcmp(the.nic.mac, mac, 6) == 0, "another MAC address");
        check_number(the.nic.mtu, 9000, "MTU");
        check_number(the.nic.link_mbps(the.nic.self), 2500, "link speed");
        check(!the.model->line_sleeps(), "the line may sleep between frames");
        for (uint32_t i = 0; i < 40; i++) check(arrive(sizes[i % 16], i), "a frame did not arrive");
        check_number(drain(0, sizes), 40, "frames received");
        the.given = the.sent = 0;
        check_number(give(BATCH, 300), BATCH, "frames taken");
        check_number(the.model->transmit(BATCH), BATCH, "frames sent");
    }
}

static void a_sick_device_is_refused(void)
{
    static const enum nic_fault faults[] = {FAULT_RESET_HANGS, FAULT_DEAD};
    for (uint32_t i = 0; i < 2; i++) {
        const char *why = NULL;
        struct nic_device d = make_device();
        power_on(0);
        the.model->set_fault(faults[i]);
        check(the.driver->open(&the.nic, &d, &why) == -1, "a device that is not well was opened");
        check(why && *why, "no reason was given");
    }
    const char *why = NULL;
    struct nic_device d = make_device();
    power_on(the.model->variants);
    check(the.driver->open(&the.nic, &d, &why) == -1, "a device of another kind was opened");
}

/* More frames than the ring holds, in bursts of every size, always in order. */
static void receives_for_ever(void)
{
    uint32_t n = 0;
    open_nic();
    for (uint32_t burst = 1; burst < 100; burst++) {
        for (uint32_t i = 0; i < burst; i++)
            check(arrive(sizes[(n + i) % 16], n + i), "a frame did not arrive");
        check_number(drain(n, sizes), burst, "frames received");
        n += burst;
    }
    struct nic_stats s = counters();
    check_number(s.in, n, "counter of received frames");
    check_number(s.errors, 0, "counter of errors");
    check_number(s.dropped, 0, "counter of lost frames");
}

/* What finds no descriptor is lost and counted; everything after it comes again. */
static void survives_a_burst_larger_than_the_ring(void)
{
    uint64_t lost = 0;
    open_nic();
    for (int round = 0; round < 3; round++) {
        uint32_t taken = 0;
        for (uint32_t i = 0; i < 3 * NIC_RING; i++) taken += (uint32_t)arrive(60, i);
        check(taken >= NIC_RING / 2 - 1 && taken <= NIC_RING, "a burst: the ring took too few or too many");
        lost += 3 * NIC_RING - taken;
        check_number(drain(0, smallest), taken, "frames of a burst");
        check(drain(0, smallest) == 0, "frames out of nowhere");
        check(arrive(60, 0), "after a burst nothing arrives any more");
        check_number(drain(0, smallest), 1, "frames after a burst");
    }
    struct nic_stats s = counters();
    check_number(s.dropped, lost, "counter of lost frames");
    check_number(s.errors, 0, "counter of errors");
}

/* Frames that are no frames do not come up, are counted once each, and leave their neighbours alone. */
static void drops_what_is_no_frame(void)
{
    static const struct {
        uint32_t bytes;
        enum nic_arrival how;
    } bad[] = {{22, ARRIVES_WELL},         {59, ARRIVES_WELL},           {9015, ARRIVES_WELL},
               {10236, ARRIVES_WELL},      {10237, ARRIVES_WELL},        {10240, ARRIVES_WELL},
               {9728, ARRIVES_WELL},       {11000, ARRIVES_WELL},        {16000, ARRIVES_WELL},
               {64, ARRIVES_WITH_BAD_CRC}, {1514, ARRIVES_WITH_BAD_CRC}, {64, ARRIVES_TOO_LATE},
               {1514, ARRIVES_TOO_LATE}};
    static uint8_t frame[16384];
    uint32_t count = sizeof bad / sizeof *bad, n = 0;
    open_nic();
    for (int round = 0; round < 40; round++) { // often enough to go around the ring
        uint32_t first = n;
        for (uint32_t i = 0; i < count; i++) {
            fill(frame, bad[i].bytes, 12345);
            the.model->arrive(frame, bad[i].bytes, bad[i].how);
            check(arrive(sizes[n % 16], n), "a good frame did not arrive");
            n++;
        }
        check_number(drain(first, sizes), count, "good frames among bad ones");
    }
    check_number(counters().errors, 40ul * count, "counter of errors");
}

static void other_stations_frames_stay_outside(void)
{
    uint8_t frame[60];
    open_nic();
    fill(frame, sizeof frame, 1);
    frame[5] ^= 1; // another station
    the.model->arrive(frame, sizeof frame, ARRIVES_WELL);
    fill(frame, sizeof frame, 0);
    frame[5] = 1; // a group
    the.model->arrive(frame, sizeof frame, ARRIVES_WELL);
    check(drain(0, smallest) == 0, "another station's frame came up");
    check(arrive(60, 0) && arrive(60, 1), "a frame did not arrive");
    check_number(drain(0, smallest), 2, "frames received");
}

/* Frames that the caller holds stay as they are until its next recv(), whatever arrives. */
static void lent_frames_stay(void)
{
    struct frame f[BATCH];
    uint32_t n = 0;
    open_nic();
    for (int round = 0; round < 50; round++) {
        uint32_t got, more = 0;
        for (uint32_t i = 0; i < 8; i++) check(arrive(128, n + i), "a frame did not arrive");
        got = the.nic.recv(the.nic.self, f, BATCH);
        check_number(got, 8, "frames received");
        for (uint32_t i = 0; i < NIC_RING; i++) more += (uint32_t)arrive(128, n + 8 + more);
        for (uint32_t i = 0; i < got; i++)
            check_frame(f[i].data, 128, n + i, "a frame changed while the caller had it");
        n += 8;
        while ((got = the.nic.recv(the.nic.self, f, BATCH)))
            for (uint32_t i = 0; i < got; i++)
                check_frame(f[i].data, 128, n++, "a frame changed or is out of order");
        n = 0;
        check(more > 0, "nothing arrived beside frames that are lent");
    }
}

/* One doorbell a batch, whatever sizes. */
static void sends_in_batches(void)
{
    open_nic();
    uint32_t before = the.model->doorbells();
    for (uint32_t round = 0; round < 60; round++) {
        uint32_t bytes = round % 5 == 0 ? 14 + round : sizes[round % 16];
        check_number(give(BATCH, bytes), BATCH, "frames taken");
        check_number(the.model->transmit(MOST_FRAMES), BATCH, "frames sent");
    }
    check_number(the.model->doorbells() - before, 60, "doorbells");
    check_number(counters().out, 60ul * BATCH, "counter of frames sent");
}

/* Nobody sends: the ring fills, takes no more, and goes on where there is room; frames in it are left alone.
 */
static void a_full_ring_takes_no_more(void)
{
    static uint8_t large[9100];
    struct frame too_large = {large, sizeof large};
    open_nic();
    while (the.given < 2 * NIC_RING && give(1, 80)) {
    }
    check(the.given >= NIC_RING / 2 && the.given <= NIC_RING, "the transmit ring took too few or too many");
    for (uint32_t round = 0; round < 100; round++) {
        check_number(the.model->transmit(10), 10, "frames sent");
        for (uint32_t i = 0; i < 10; i++) check_number(give(1, 80), 1, "frames taken where there is room");
        check_number(give(1, 80), 0, "frames taken by a full ring");
    }
    the.model->transmit(MOST_FRAMES);
    check_number(the.sent, the.given, "frames sent in the end");
    check_number(the.nic.send(the.nic.self, &too_large, 1), 1, "a frame too large is taken (and dropped)");
    check_number(the.model->transmit(1), 0, "a frame too large was sent");
    check_number(counters().errors, 1, "counter of errors");
}

/* Frames that wait while the link is down go out when it is up again; what comes meanwhile does not arrive.
 */
static void the_link_goes_down_and_up(void)
{
    static const uint32_t speeds[] = {10, 100, 1000, 2500};
    open_nic();
    for (uint32_t i = 0; i < 4; i++) {
        the.model->set_link(0);
        check_number(the.nic.link_mbps(the.nic.self), 0, "link speed while it is down");
        check(!arrive(60, 0), "a frame arrived while the link was down");
        check_number(give(5, 90), 5, "frames taken");
        check_number(the.model->transmit(MOST_FRAMES), 0, "frames sent while the link was down");
        check(drain(0, smallest) == 0, "frames out of nowhere");
        the.model->set_link(speeds[i]);
        check_number(the.nic.link_mbps(the.nic.self), speeds[i], "link speed");
        check_number(the.model->transmit(MOST_FRAMES), 5, "frames sent when the link was up again");
        check(arrive(60, 0), "a frame did not arrive when the link was up again");
        check_number(drain(0, smallest), 1, "frames received");
    }
}

/* A doorbell that the device does not hear: the frames go out all the same. */
static void a_lost_doorbell_is_rung_again(void)
{
    struct frame f[BATCH];
    open_nic();
    if (!the.model->loses_doorbells) return;
    the.model->set_fault(FAULT_DOORBELL_LOST);
    check_number(give(5, 90), 5, "frames taken");
    check_number(the.model->transmit(MOST_FRAMES), 0, "frames sent without a doorbell");
    uint32_t before = the.model->doorbells();
    the.nic.recv(the.nic.self, f, BATCH);
    check_number(the.model->doorbells() - before, 0, "doorbells right after the first");
    the.ns += 5000000;
    the.nic.recv(the.nic.self, f, BATCH);
    check_number(the.model->transmit(MOST_FRAMES), 5, "frames sent after a lost doorbell");
    before = the.model->doorbells();
    the.ns += 5000000;
    the.nic.recv(the.nic.self, f, BATCH);
    check_number(the.model->doorbells() - before, 0, "doorbells without frames");
}

/* Both ways at once, for a while: nothing is lost, nothing is twice. */
static void both_ways(void)
{
    uint32_t n = 0;
    open_nic();
    for (uint32_t round = 0; round < 200 && the.given + BATCH < MOST_FRAMES; round++) {
        uint32_t burst = 1 + round * 7 % 60;
        for (uint32_t i = 0; i < burst; i++)
            check(arrive(sizes[(n + i) % 16], n + i), "a frame did not arrive");
        give(1 + round % BATCH, sizes[round % 16]);
        the.model->transmit(round % 40);
        check_number(drain(n, sizes), burst, "frames received");
        n += burst;
    }
    the.model->transmit(MOST_FRAMES);
    check_number(the.sent, the.given, "frames sent in the end");
}

/* Armed: wakes up by magic packets for its address, to everybody or to us, and by nothing else; no frame goes
 * in or out, no memory is touched. */
static void a_magic_packet_wakes_it(void)
{
    enum { BYTES = 160, PATTERN = 102, AT = 42 }; // behind UDP's headers
    uint8_t frame[BYTES];
    memset(frame, 0, sizeof frame);
    open_nic();
    memset(frame, 255, 6);
    memset(frame + AT, 255, 6);
    for (uint32_t i = 6; i < PATTERN; i++) frame[AT + i] = mac[i % 6];
    check(!the.model->wakes(frame, BYTES), "it is armed from the beginning");
    give(5, 90);
    check_number((uint64_t)the.nic.arm_wake(the.nic.self), 0, "armed");
    the.dma_allowed = 0;
    check(!the.model->is_running() || !the.model->arrive(frame, BYTES, ARRIVES_WELL),
          "a frame is received by a device that should sleep");
    check_number(the.model->transmit(MOST_FRAMES), 0, "frames sent by a device that should sleep");
    check(the.model->wakes(frame, BYTES), "a magic packet does not wake it");
    memcpy(frame, mac, 6);
    check(the.model->wakes(frame, BYTES), "a magic packet to its address does not wake it");
    check(!the.model->wakes(frame, AT + PATTERN - 1), "a frame wakes it that ends too early");
    frame[AT + 50] ^= 1;
    check(!the.model->wakes(frame, BYTES), "a frame wakes it that is no magic packet");
    frame[AT + 50] ^= 1;
    for (uint32_t i = 11; i < PATTERN; i += 6) frame[AT + i] ^= 1;
    check(!the.model->wakes(frame, BYTES), "another station's magic packet wakes it");
    power_on(0);
    the.model->set_fault(FAULT_DEAD);
    check(the.nic.arm_wake(the.nic.self) != 0, "a dead device is armed");
}

const struct exercise exercises[] = {
    {"every revision opens", every_revision_opens},
    {"a sick device is refused", a_sick_device_is_refused},
    {"receives for ever", receives_for_ever},
    {"a burst larger than the ring", survives_a_burst_larger_than_the_ring},
    {"too long, too short, damaged", drops_what_is_no_frame},
    {"other stations' frames", other_stations_frames_stay_outside},
    {"lent frames stay", lent_frames_stay},
    {"sends in batches", sends_in_batches},
    {"a full ring", a_full_ring_takes_no_more},
    {"link down and up", the_link_goes_down_and_up},
    {"a lost doorbell", a_lost_doorbell_is_rung_again},
    {"both ways", both_ways},
    {"a magic packet wakes it", a_magic_packet_wakes_it},
};
const uint32_t exercises_count = sizeof exercises / sizeof *exercises;

const char *exercise_run(const struct exercise *e, const struct nic_model *model,
                         const struct nic_driver *driver)
{
    memset(&the, 0, sizeof the);
    the.model = model;
    the.driver = driver;
    if (setjmp(the.out) == 0) e->run();
    for (; the.pieces > 0; the.pieces--) free(the.piece[the.pieces - 1].data);
    return the.complaint[0] ? the.complaint : NULL;
}
