// engine_test.c: the host's protocol against the ducks' on a simulated wire: right bits whatever happens to
// frames.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/flock/net/internal.h"
#include "tests/fp9/fp9_random.h"
#include "tests/net/world.h"

#define MS 1000000ull

static const struct duck_bank_shape banks[] = {{6, 1, 64}, {5, 2, 56}, {0, 1, 96}};
static const struct duck_run whole[] = {{0, 0, 8}, {1, 0, 7}, {2, 0, 12}};
static const struct duck_shape shape = {.hidden = 1024, .banks = 3, .bank = banks, .runs = 3, .run = whole};

static uint32_t lanes_done, lanes_wanted;

static bool steps_done(struct world *w, int host)
{
    struct net_flock *f = &w->host[host].flock;
    if (atomic_load(&f->failed)) return true;
    for (uint32_t l = 0; l < lanes_wanted; l++)
        if (!(lanes_done >> l & 1) && net_poll(f, l, w->time, NULL) == 1) lanes_done |= 1u << l;
    return lanes_done == (1u << lanes_wanted) - 1;
}

/* One step on every lane at once, of the banks in turn. */
static void run_round(struct world *w, int host, uint32_t lanes, uint32_t round, uint32_t tokens, uint64_t ns)
{
    struct net_flock *f = &w->host[host].flock;
    struct world_step step[4];
    for (uint32_t l = 0; l < lanes; l++) {
        uint32_t bank = (round + l) % 3;
        world_step_make(w, host, &step[l], bank, 1 + (tokens + l - 1) % tokens, bank == 2 ? 0 : 3,
                        round * 7 + l);
        assert_int_equal(net_submit(f, l, &step[l].step, w->time, NULL), 0);
    }
    lanes_done = 0;
    lanes_wanted = lanes;
    bool done = world_run(w, steps_done, host, ns);
    struct error err = {""};
    if (net_failure(f, &err)) fail_msg("round %u: %s", round, err.text);
    if (!done) fail_msg("round %u: not done in time", round);
    for (uint32_t l = 0; l < lanes; l++) {
        if (!world_step_is_right(w, &step[l])) fail_msg("round %u, lane %u: wrong bits", round, l);
        world_step_free(&step[l]);
    }
}

static void must_open(struct world *w, int host)
{
    struct error err = {"no failure, but not in time"};
    if (world_open(w, host)) return;
    net_failure(&w->host[host].flock, &err);
    fail_msg("open: %s", err.text);
}

static struct world *world_new(uint32_t ports, uint32_t ducks, uint32_t element_bytes, uint64_t seed)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    world_make(w, &shape, ports, ducks, element_bytes, seed);
    return w;
}

/* With a first host that has a session: steps of up to 4 tokens. */
static struct world *world_running(uint32_t ports, uint32_t ducks, uint64_t seed, uint32_t lanes,
                                   enum wire_dtype activation)
{
    struct world *w = world_new(ports, ducks, 1, seed);
    world_host_start(w, 0, lanes, 4, activation);
    must_open(w, 0);
    return w;
}

static void world_end(struct world *w)
{
    world_free(w);
    free(w);
}

static const struct {
    const char *name;
    uint32_t ports, ducks, lanes, tokens, rounds, element_bytes;
    enum wire_dtype activation;
    struct wire_faults faults;
} flocks[] = {
    {"one duck", 1, 1, 1, 1, 20, 1, WIRE_F32, {.delay_ns = 5000}},
    {"three ducks, bf16 weights", 1, 3, 2, 5, 20, 2, WIRE_BF16, {.delay_ns = 5000}},
    {"two domains, large steps", 2, 4, 2, 40, 10, 1, WIRE_BF16, {.delay_ns = 5000}},
    {"four domains, fp32 weights", 4, 8, 3, 3, 20, 4, WIRE_F32, {.delay_ns = 5000}},
    {"loss, duplication, jitter",
     2,
     4,
     2,
     4,
     300,
     1,
     WIRE_BF16,
     {.lose = 0.01, .twice = 0.01, .late = 0.05, .delay_ns = 20000, .jitter_ns = 2000000}},
    {"one frame of five is lost",
     2,
     3,
     2,
     6,
     60,
     1,
     WIRE_F32,
     {.lose = 0.2, .twice = 0.1, .delay_ns = 20000}},
    {"broadcasts are lost", 2, 4, 2, 4, 100, 1, WIRE_BF16, {.lose_broadcast = 0.3, .delay_ns = 20000}},
    {"everything arrives late",
     1,
     4,
     2,
     20,
     20,
     1,
     WIRE_F32,
     {.lose = 0.02, .late = 1, .delay_ns = 300000, .jitter_ns = 5000000}},
};

static void right_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof flocks / sizeof *flocks; i++) {
        struct world *w = world_new(flocks[i].ports, flocks[i].ducks, flocks[i].element_bytes, 3 + i);
        world_host_start(w, 0, flocks[i].lanes, flocks[i].tokens, flocks[i].activation);
        w->faults = flocks[i].faults;
        must_open(w, 0);
        uint64_t begun = w->time, frames = w->frames;
        for (uint32_t r = 0; r < flocks[i].rounds; r++)
            run_round(w, 0, flocks[i].lanes, r, flocks[i].tokens, 10000 * MS);
        uint64_t experts = 0, repeated = 0;
        for (uint32_t d = 0; d < flocks[i].ducks; d++) {
            experts += w->host[0].flock.duck[d].count.experts;
            repeated +=
                w->host[0].flock.duck[d].count.resend_asked + w->host[0].flock.duck[d].count.resend_served;
        }
        assert_true(experts > 0);
        if (flocks[i].faults.lose > 0) assert_true(repeated > 0);
        print_message("%-28s %4u rounds, %5.1f us simulated each, %7llu frames, %5llu asked again\n",
                      flocks[i].name, flocks[i].rounds, (double)(w->time - begun) / 1e3 / flocks[i].rounds,
                      (unsigned long long)(w->frames - frames), (unsigned long long)repeated);
        world_end(w);
    }
}

static void paused_duck(void **state)
{
    (void)state;
    struct world *w = world_running(1, 3, 9, 2, WIRE_BF16);
    for (uint32_t r = 0; r < 10; r++) {
        if (r % 3 == 0) w->duck[r % 2].paused_until = w->time + 300 * MS;
        uint64_t begun = w->time;
        run_round(w, 0, 2, r, 4, 2000 * MS);
        if (r % 3 == 0) assert_true(w->time - begun < 1000 * MS); // it is asked again soon after
    }
    world_end(w);
}

static bool failed(struct world *w, int host)
{
    return atomic_load(&w->host[host].flock.failed);
}

static void dead_duck(void **state)
{
    (void)state;
    struct world *w = world_running(1, 2, 9, 1, WIRE_BF16);
    w->duck[1].paused_until = UINT64_MAX;
    struct world_step s;
    world_step_make(w, 0, &s, 0, 2, 3, 1);
    assert_int_equal(net_submit(&w->host[0].flock, 0, &s.step, w->time, NULL), 0);
    assert_true(world_run(w, failed, 0, 10000 * MS));
    struct error err;
    assert_int_equal(net_poll(&w->host[0].flock, 0, w->time, &err), -EHOSTDOWN);
    assert_non_null(strstr(err.text, "duck 1 (world, 10.21.0.102:21210) has not answered for"));
    world_step_free(&s);
    world_end(w);
}

/* A duck whose program failed is lost like one that is silent: its report says why. */
static void failed_program(void **state)
{
    (void)state;
    struct world *w = world_running(1, 2, 9, 1, WIRE_BF16);
    assert_int_equal(net_lost(&w->host[0].flock), -1);
    duck_fault(
        w->duck[1].duck,
        &(struct wire_fault){
            .vector = 14, .core = 2, .rip = 0x500000201015, .program = 0x500000200000, .text = "page fault"});
    assert_true(world_run(w, failed, 0, 1000 * MS));
    assert_int_equal(net_lost(&w->host[0].flock), 1);
    struct error err;
    assert_int_equal(net_failure(&w->host[0].flock, &err), -EIO);
    assert_string_equal(err.text, "duck 1 (world, 10.21.0.102:21210): core 2: page fault (vector 0xe) at "
                                  "0x500000201015, 0x1015 bytes into program 0000000000000000");
    world_end(w);
}

/* A multiplier that gets one bit wrong. */
static void wrong_expert(const float *g, const float *u, float weight, size_t n, float *hs)
{
    fp9_scalar.expert(g, u, weight, n, hs);
    uint32_t bits;
    memcpy(&bits, hs + n / 2, sizeof bits);
    bits ^= 1;
    memcpy(hs + n / 2, &bits, sizeof bits);
}

static void unsound_duck(void **state)
{
    (void)state;
    struct fp9_kernels wrong = fp9_scalar;
    wrong.expert = wrong_expert;
    for (int sound = 0; sound < 2; sound++) {
        world_duck_kernels = sound ? &fp9_scalar : &wrong;
        struct world *w = world_new(1, 2, 1, 9);
        world_duck_kernels = NULL;
        world_host_start(w, 0, 1, 4, WIRE_BF16);
        assert_int_equal(world_open(w, 0), sound);
        struct error err = {""};
        assert_int_equal(net_failure(&w->host[0].flock, &err), sound ? 0 : -EIO);
        if (!sound) {
            assert_non_null(strstr(err.text, "(world, 10.21.0.10"));
            assert_non_null(strstr(err.text, "computes wrongly: its known-answer test gives"));
            for (uint32_t i = 0; i < 2; i++) assert_int_equal(w->host[0].flock.duck[i].count.put_bytes, 0);
        }
        world_end(w);
    }
}

/* A duck that has not the memory for its part says so, with both numbers. */
static void small_duck(void **state)
{
    (void)state;
    size_t memory = world_duck_memory;
    world_duck_memory = 4 << 20;
    struct world *w = world_new(1, 1, 4, 9);
    world_duck_memory = memory;
    world_host_start(w, 0, 1, 4, WIRE_BF16);
    assert_false(world_open(w, 0));
    struct error err = {""};
    assert_int_equal(net_failure(&w->host[0].flock, &err), -ENOMEM);
    unsigned long long needed = 0, there = 0;
    const char *at = strstr(err.text, "has no memory for its part: ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "has no memory for its part: %llu bytes needed, %llu free", &needed, &there),
                     2);
    assert_true(needed > there && there > 0 && there < 4 << 20);
    assert_int_equal(there, w->host[0].flock.duck[0].hello.memory_free);
    world_end(w);
}

/* Bandwidth becomes weight: what is near the median is equal to it, and a weight of the file stands. */
static void weights_by_bandwidth(void **state)
{
    (void)state;
    struct net_config config = {.ports = 1, .ducks = 5};
    struct net_match match[5] = {{.port = 0}};
    struct spec_duck duck[5] = {
        {.plan.weight = 1}, {.plan.weight = 1}, {.plan.weight = 1}, {.plan.weight = 1}, {.plan.weight = 1}};
    static const uint64_t gb[5] = {40, 45, 20, 43, 80};
    struct net_flock f;
    config.match = match;
    assert_int_equal(net_flock_init(&f, &config, NULL), 0);
    for (int i = 0; i < 5; i++) f.duck[i].hello.read_bytes_per_second = gb[i] * 1000000000;
    net_weigh_ducks(&f, duck);
    assert_true(duck[0].plan.weight == 1 && duck[1].plan.weight == 1 && duck[3].plan.weight == 1);
    assert_true(duck[2].plan.weight == 20.0 / 43 && duck[4].plan.weight == 80.0 / 43);
    for (int i = 0; i < 5; i++) duck[i].plan.weight = 1;
    duck[4].weighed = true;
    net_weigh_ducks(&f, duck);
    assert_true(duck[2].plan.weight == 1);
    duck[4].weighed = false;
    f.duck[0].hello.read_bytes_per_second = 0; // one has not measured: nothing to compare
    net_weigh_ducks(&f, duck);
    assert_true(duck[2].plan.weight == 1);
    net_flock_free(&f);
}

/* The last magic packet that a port sent. */
struct caught {
    uint8_t room[WIRE_DATAGRAM_MAX], kept[102];
    uint32_t bytes, frames;
    bool to_all;
};

static uint8_t *caught_buffer(void *self)
{
    return ((struct caught *)self)->room;
}

static void caught_send(void *self, const struct net_peer *to, uint32_t bytes)
{
    struct caught *c = self;
    if (c->room[0] != 0xff) return; // DISCOVER
    c->to_all = to == NULL;
    c->bytes = bytes;
    c->frames++;
    memcpy(c->kept, c->room, sizeof c->kept);
}

/* A duck that sleeps is woken by its MAC address, once a second, and nobody else is. */
static void magic_packets(void **state)
{
    (void)state;
    static struct caught c;
    struct net_config config = {.ports = 1, .ducks = 2};
    struct net_match match[2] = {{.port = 0, .has_mac = true, .mac = {2, 0, 0, 0, 0, 1}},
                                 {.port = 0, .has_mac = true, .mac = {2, 0, 0, 0, 0, 2}}};
    struct net_flock f;
    config.match = match;
    assert_int_equal(net_flock_init(&f, &config, NULL), 0);
    f.port[0].io = (struct net_io){&c, caught_buffer, caught_send};
    f.wants = NET_WANT_WAKE;
    f.duck[1].wanted = true;
    for (uint64_t now = MS; now < 2500 * MS; now += MS) {
        uint32_t before = c.frames;
        net_port_work(&f.port[0], now);
        if (c.frames == before) continue;
        assert_true(c.to_all);
        assert_int_equal(c.bytes, 102);
        for (int i = 0; i < 6; i++) assert_int_equal(c.kept[i], 0xff);
        for (int i = 1; i <= 16; i++) assert_memory_equal(c.kept + 6 * i, match[1].mac, 6);
    }
    assert_int_equal(c.frames, 3);
    net_flock_free(&f);
}

static bool all_closed(struct world *w, int host)
{
    return net_all_reached(&w->host[host].flock, NET_CLOSED, NULL);
}

/* A daemon that ends or dies and comes back sends nothing, if it has its manifest. */
static void restart(void **state)
{
    (void)state;
    for (int dies = 0; dies < 2; dies++) {
        struct world *w = world_running(2, 3, 11, 1, WIRE_F32);
        uint64_t units = w->host[0].flock.units_sent;
        assert_true(units > 0 && w->host[0].flock.units_kept == 0);
        run_round(w, 0, 1, 0, 4, 1000 * MS);
        struct manifest kept = w->host[0].flock.manifest;
        w->host[0].flock.manifest = (struct manifest){0};
        if (!dies) {
            net_set_goal(&w->host[0].flock, NET_CLOSE);
            assert_true(world_run(w, all_closed, 0, 1000 * MS));
        }
        world_host_end(w, 0);
        uint64_t begun = w->time;
        world_host_start(w, 0, 1, 4, WIRE_F32);
        w->host[0].flock.manifest = kept;
        must_open(w, 0);
        assert_int_equal(w->host[0].flock.units_sent, 0);
        assert_int_equal(w->host[0].flock.units_kept, units);
        if (dies) {
            assert_true(w->time - begun > 1000 * MS); // the dead one's lease had to run out
        } else {
            assert_true(w->time - begun < 500 * MS);
        }
        run_round(w, 0, 1, 0, 4, 1000 * MS);
        world_end(w);
    }
}

/* Three places for any duck and one for a duck by its MAC address: who has which, as HELLO's last digit
 * tells. */
static void take_places(struct world *w, const char *file, uint32_t late, uint8_t who[4])
{
    world_host_start(w, 0, 1, 4, WIRE_F32);
    struct net_flock *f = &w->host[0].flock;
    for (uint32_t i = 0; i < 3; i++) w->host[0].match[i] = (struct net_match){.port = 0};
    snprintf(w->host[0].config.places, sizeof w->host[0].config.places, "%s", file);
    net__places_read(f);
    w->duck[late].paused_until = w->time + 100 * MS;
    must_open(w, 0);
    net_keep_places(f, NULL);
    for (uint32_t i = 0; i < 4; i++) who[i] = f->duck[i].hello.mac[5];
    net_set_goal(f, NET_CLOSE);
    assert_true(world_run(w, all_closed, 0, 1000 * MS));
    world_host_end(w, 0);
}

/* Whoever answers last, and although the named duck is last in the file: everybody has the place of the first
 * time. */
static void places_for_any_duck(void **state)
{
    (void)state;
    char folder[] = "/tmp/duckd-places-XXXXXX", file[64], name[128];
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/places", folder);
    struct world *w = world_new(1, 4, 1, 15);
    uint8_t first[4], again[4];
    take_places(w, file, 1, first);
    assert_int_equal(first[3], 3);
    assert_int_equal(first[2], 1); // came last
    for (uint32_t late = 0; late < 4; late++) {
        take_places(w, file, late, again);
        assert_memory_equal(again, first, sizeof first);
    }
    world_end(w);
    glob_t g;
    snprintf(name, sizeof name, "%s-*", file);
    assert_int_equal(glob(name, 0, NULL, &g), 0);
    assert_int_equal(g.gl_pathc, 1);
    unlink(g.gl_pathv[0]);
    globfree(&g);
    assert_int_equal(rmdir(folder), 0);
}

static void second_host(void **state)
{
    (void)state;
    struct world *w = world_running(1, 2, 12, 1, WIRE_F32);
    world_host_start(w, 1, 1, 4, WIRE_F32);
    assert_false(world_open(w, 1));
    struct error err = {""};
    assert_int_equal(net_failure(&w->host[1].flock, &err), -EBUSY);
    assert_non_null(strstr(err.text, "is in use: the host 10.21.0.1 holds it"));
    run_round(w, 0, 1, 0, 4, 1000 * MS); // the first is not disturbed
    world_end(w);
}

static bool has_id(const struct world_step *s, int32_t id)
{
    for (uint32_t i = 0; i < s->step.tokens * s->step.top_k; i++)
        if (s->ids[i] == id) return true;
    return false;
}

/* Of how many units a duck holds other bytes than those with these hashes; `keep`: they are noted there. */
static uint64_t other_units(const struct world *w, uint32_t duck, uint64_t *hash, bool keep)
{
    const struct net_duck *d = &w->host[0].flock.duck[duck];
    uint64_t others = 0;
    for (uint64_t u = 0; u < d->units; u++) {
        assert_true(d->unit_hash[u] != 0);
        others += d->unit_hash[u] != hash[u];
        if (keep) hash[u] = d->unit_hash[u];
    }
    return others;
}

/* Another sign of one weight of one expert, in one unit of one duck: the sums of the steps that chose the
 * expert are others, and no other sum is. */
static void changed_weight(void **state)
{
    (void)state;
    enum { DUCKS = 3, UNITS = 256 };
    static uint64_t hash[DUCKS][UNITS];
    struct world *w = world_running(1, DUCKS, 13, 1, WIRE_F32);
    for (uint32_t i = 0; i < DUCKS; i++) {
        assert_in_range(w->host[0].flock.duck[i].units, 1, UNITS);
        other_units(w, i, hash[i], true);
    }
    run_round(w, 0, 1, 0, 4, 1000 * MS); // right so far
    net_set_goal(&w->host[0].flock, NET_CLOSE);
    assert_true(world_run(w, all_closed, 0, 1000 * MS));
    world_host_end(w, 0);

    uint8_t *gate =
        (uint8_t *)(uintptr_t)w->layers->tensor[0].data; // expert 0 of bank 0; its reference is made
    uint32_t at = 0;
    for (uint32_t i = 1; i < 8 * shape.hidden; i++) // of the first slice the largest
        if ((gate[i] & 0x7f) > (gate[at] & 0x7f)) at = i;
    gate[at] ^= 0x80;
    world_host_start(w, 0, 1, 4, WIRE_F32);
    must_open(w, 0);
    uint64_t others = 0;
    for (uint32_t i = 0; i < DUCKS; i++) others += other_units(w, i, hash[i], false);
    assert_int_equal(others, 1);

    uint32_t chosen = 0, rounds = 20;
    for (uint32_t r = 0; r < rounds; r++) {
        struct world_step s;
        world_step_make(w, 0, &s, 0, 1, 3, r);
        assert_int_equal(net_submit(&w->host[0].flock, 0, &s.step, w->time, NULL), 0);
        lanes_done = 0;
        lanes_wanted = 1;
        assert_true(world_run(w, steps_done, 0, 1000 * MS));
        assert_int_equal(!world_step_is_right(w, &s), has_id(&s, 0));
        chosen += has_id(&s, 0);
        world_step_free(&s);
    }
    assert_in_range(chosen, 1, rounds - 1);
    world_end(w);
}

/* Frames with good tags and random contents do no harm. */
static void hostile_frames(void **state)
{
    (void)state;
    struct world *w = world_running(1, 2, 14, 2, WIRE_F32);
    struct net_flock *f = &w->host[0].flock;
    static const uint8_t types[] = {WIRE_HELLO,       WIRE_OPENED, WIRE_REFUSED, WIRE_PONG,   WIRE_PUT_ACK,
                                    WIRE_UNIT_HASHES, WIRE_RESULT, WIRE_DONE,    WIRE_RESEND, WIRE_LOG_REPLY};
    uint64_t seed = 5;
    struct world_step s;
    world_step_make(w, 0, &s, 0, 4, 3, 1);
    assert_int_equal(net_submit(f, 0, &s.step, w->time, NULL), 0);
    for (int i = 0; i < 50000; i++) {
        uint8_t frame[WIRE_DATAGRAM_MAX];
        uint32_t length = random_below(&seed, i % 2 ? 64 : WIRE_PAYLOAD);
        for (uint32_t k = 0; k < length; k++) frame[WIRE_HEADER + k] = (uint8_t)random_next(&seed);
        struct wire_header h = {.type = types[random_below(&seed, sizeof types)],
                                .length = (uint16_t)length,
                                .session = i % 3 ? f->session : 0,
                                .sequence = random_below(&seed, 8),
                                .source = (uint16_t)random_below(&seed, 4),
                                .fragments = (uint16_t)(1 + random_below(&seed, 20))};
        h.fragment = (uint16_t)random_below(&seed, h.fragments);
        if (h.type == WIRE_RESULT && h.source < 2)
            continue; // a keyed duck may send wrong numbers; nothing protects from that
        uint32_t bytes = wire_seal(frame, h, h.session ? &f->key : &f->flock_key);
        net_port_input(&f->port[0], &(struct net_peer){.address = 1}, frame, bytes, w->time);
        frame[random_below(&seed, bytes)] ^= 1; // and one that fails its tag
        net_port_input(&f->port[0], &(struct net_peer){.address = 1}, frame, bytes, w->time);
    }
    world_step_free(&s);
    assert_true(f->port[0].wrong_tag > 1000);
    world_end(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_bits),          cmocka_unit_test(paused_duck),
        cmocka_unit_test(dead_duck),           cmocka_unit_test(restart),
        cmocka_unit_test(second_host),         cmocka_unit_test(changed_weight),
        cmocka_unit_test(hostile_frames),      cmocka_unit_test(unsound_duck),
        cmocka_unit_test(small_duck),          cmocka_unit_test(weights_by_bandwidth),
        cmocka_unit_test(failed_program),      cmocka_unit_test(magic_packets),
        cmocka_unit_test(places_for_any_duck),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
