/* bench_wire.c: what the protocol costs a core beside computing: tags, hashes, packing weights, unpacking
 * activations. Best of several runs, one thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "duck/wire.h"
#include "duck/wire_unit.h"
#include "host/util/clock.h"

enum { RUNS = 15, HIDDEN = 7168, SLICES = 8, UNIT_ELEMENTS = HIDDEN * 8 * SLICES };

static uint8_t frame[WIRE_DATAGRAM_MAX], unit[UNIT_ELEMENTS], packed[4 * HIDDEN], scales[4096];
static float x[HIDDEN];
static struct duck_core *core;
static volatile uint64_t sink;

static void tag_1440(void)
{
    static const struct siphash_key key = {1, 2};
    sink =
        wire_seal(frame, (struct wire_header){.type = WIRE_STEP, .length = WIRE_PAYLOAD}, &key) + frame[24];
}

static void tag_8928(void)
{
    static const struct siphash_key key = {1, 2};
    sink = wire_seal(frame, (struct wire_header){.type = WIRE_STEP, .length = WIRE_PAYLOAD_JUMBO}, &key) +
           frame[24];
}

static void hash_unit(void)
{
    sink = wire_object_hash(unit, sizeof unit);
}

static void pack(enum duck_matrix which)
{
    uint64_t where;
    struct duck_part p = {.which = which,
                          .element_bytes = 1,
                          .data = unit,
                          .stride = which == DUCK_DOWN ? 8 * SLICES : HIDDEN,
                          .scales = scales,
                          .scale_stride = which == DUCK_DOWN ? 1 : HIDDEN / 128};
    if (duck_core_load_scales(core, &p, &where)) abort();
    for (uint32_t panel = 0; panel < duck_core_part_panels(core, &p); panel++)
        if (duck_core_load_strips(core, &p, panel, 0, duck_core_part_strips(core, &p), &where)) abort();
}

static void pack_gate(void)
{
    pack(DUCK_GATE);
}

static void pack_down(void)
{
    pack(DUCK_DOWN);
}

static void unpack_bf16(void)
{
    wire_unpack(WIRE_BF16, packed, 1, HIDDEN, x);
    sink = (uint64_t)x[5];
}

static void unpack_fp8(void)
{
    wire_unpack(WIRE_FP8, packed, 1, HIDDEN, x);
    sink = (uint64_t)x[5];
}

static void measure(const char *name, void (*fn)(void), size_t bytes)
{
    double best = 1e9;
    for (int r = 0; r < RUNS; r++) {
        int times = 0;
        uint64_t start = clock_ns();
        double took;
        do {
            fn();
            times++;
            took = (double)(clock_ns() - start) * 1e-9;
        } while (took < 0.005);
        if (took / times < best) best = took / times;
    }
    printf("%-44s %8zu B %9.2f us %7.2f GB/s\n", name, bytes, best * 1e6, (double)bytes / best * 1e-9);
}

int main(int argc, char **argv)
{
    static const struct duck_bank_shape bank = {.routed = 1, .width = 8 * SLICES};
    static const struct duck_run run = {.count = SLICES};
    static const struct duck_shape shape = {
        .hidden = HIDDEN, .banks = 1, .bank = &bank, .runs = 1, .run = &run};
    size_t bytes = (duck_core_bytes(&shape) + 63) / 64 * 64;
    if (argc > 1) {
        fprintf(stderr, "bench-wire: there is no use for '%s', it takes no arguments\n", argv[1]);
        return 2;
    }
    void *memory = aligned_alloc(64, bytes);
    core = memory ? duck_core_init(memory, bytes, &shape, fp9_select(NULL)) : NULL;
    if (!core) {
        fprintf(stderr, "bench-wire: no memory, or a CPU without AVX2\n");
        return 1;
    }
    for (size_t i = 0; i < sizeof unit; i++) unit[i] = (uint8_t)(i * 31 % 127);
    for (size_t i = 0; i < sizeof scales / 4; i++) memcpy(scales + 4 * i, &(float){0.01f}, 4);
    measure("tag, 1500-byte packet", tag_1440, WIRE_HEADER + WIRE_PAYLOAD);
    measure("tag, jumbo packet", tag_8928, WIRE_HEADER + WIRE_PAYLOAD_JUMBO);
    measure("hash of a unit (7168 x 64 e4m3)", hash_unit, sizeof unit);
    measure("packing it, gate or up", pack_gate, sizeof unit);
    measure("packing it, down", pack_down, sizeof unit);
    measure("unpacking 7168 activations, bf16", unpack_bf16, wire_packed_bytes(WIRE_BF16, 1, HIDDEN));
    measure("unpacking 7168 activations, fp8", unpack_fp8, wire_packed_bytes(WIRE_FP8, 1, HIDDEN));
    free(memory);
    return 0;
}
