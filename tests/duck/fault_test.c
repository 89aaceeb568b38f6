/* fault_test.c: a duck whose platform holds the judge's program: what the program may see, and that its
 * failure ends the session and nothing else. The platform is simulated; real faults:
 * tests/qemu/judge_faults.sh. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "duck/kat.h"
#include "duck/program.h"
#include "tests/duck/sim.h"

enum { MEMORY = 24 << 20, GRAIN = 4096 };

static const struct duck_bank_shape banks[] = {{6, 1, 176}};
static const struct duck_run runs[] = {{0, 0, 22}};
static const struct duck_shape shape = {.hidden = 392, .banks = 1, .bank = banks, .runs = 1, .run = runs};

/* The platform's program computes with the linked-in kernels, unless it is told to fail. */
static struct {
    uint32_t runs;
    int fails, has_failed;
    enum program_rights rights[MEMORY / GRAIN]; // of the sim's memory
    const uint8_t *memory;
} the;

static int load(void *self, const uint8_t *elf, size_t bytes)
{
    (void)self, (void)elf, (void)bytes;
    the.fails = elf[0] == 'F';
    the.has_failed = 0;
    return PROGRAM_OK;
}

static uint32_t run(void *self, struct team *team, uint32_t task, uint32_t most)
{
    (void)self;
    if (the.fails || the.has_failed) {
        the.has_failed = 1;
        return TEAM_CLOSED;
    }
    do {
        the.runs++;
        duck_work_run(team->job.work, team->job.phase, task);
        team_finish(team, task);
    } while (--most && team_take(team, &task));
    return TEAM_CLOSED;
}

static void share(void *self, void *at, uint64_t bytes, enum program_rights rights)
{
    (void)self;
    uint64_t from = (uint64_t)((const uint8_t *)at - the.memory);
    assert_int_equal(from % GRAIN, 0);
    assert_int_equal(bytes % GRAIN, 0);
    for (uint64_t i = 0; i < bytes / GRAIN; i++) the.rights[from / GRAIN + i] = rights;
}

static int failed(void *self, struct wire_fault *out)
{
    (void)self;
    static int told;
    if (!the.has_failed) told = 0;
    if (!the.has_failed || told) return 0;
    told = 1;
    *out = (struct wire_fault){.vector = 14, .core = 3, .rip = 0x1234, .text = "page fault"};
    return 1;
}

static const struct program_ops ops = {
    .load = load, .run = run, .share = share, .grain = GRAIN, .failed = failed};

static struct sim *sim_with_program(void)
{
    struct sim *s = sim_make(MEMORY, 1);
    memset(&the, 0, sizeof the);
    memset(s->platform.memory, 0, MEMORY);
    the.memory = s->platform.memory;
    s->platform.program = &ops;
    struct duck_options o = {.platform = &s->platform,
                             .link = &s->link,
                             .flock_key = {1, 2},
                             .kernels = fp9_select(NULL),
                             .needs_program = 1};
    s->duck = duck_start(&o);
    return s;
}

static void open_with(struct mini_host *h, const struct layers *l, const char *program)
{
    h->terms.plan_hash = wire_object_hash(l->plan, l->plan_bytes);
    h->hidden = l->shape.hidden;
    h->terms.program_hash = wire_object_hash((const uint8_t *)program, strlen(program));
    assert_true(mini_discover(h));
    assert_true(h->hello.features & WIRE_BARE_METAL);
    assert_int_equal(mini_open(h), 1);
    if (!h->opened.program_held)
        assert_int_equal(mini_put(h, WIRE_PROGRAM, 0, (const uint8_t *)program, strlen(program), NULL),
                         WIRE_PUT_HELD);
    if (!h->opened.plan_held || h->opened.units_held < l->units) assert_true(mini_load(h, l));
}

static void check_step(struct mini_host *h, const struct layers *l, uint32_t number)
{
    size_t bytes, values;
    uint8_t *step = layers_step(l, 0, 2, 4, WIRE_F32, WIRE_F32, h->terms.payload, number, &bytes);
    float *expected = layers_expect(l, step, h->terms.payload, &values);
    float *out = calloc(values + 1, sizeof *out);
    struct wire_done done = {0};
    mini_send_step(h, number, step, bytes);
    assert_true(mini_collect(h, number, step, bytes, duck_core_subtrees(l->core, 0, NULL, 0), out, &done));
    assert_memory_equal(out, expected, values * sizeof *out);
    free(step);
    free(expected);
    free(out);
}

static void the_program_sees_weights_and_steps(void **state)
{
    (void)state;
    struct layers *l = layers_make(&shape, 1, 5);
    struct sim *s = sim_with_program();
    struct mini_host h = mini_host_make(sim_wire(s), (struct siphash_key){1, 2}, 9);
    assert_int_equal(the.rights[0], PROGRAM_NOTHING); // the duck itself, its key in it
    open_with(&h, l, "right");
    check_step(&h, l, 1);
    assert_true(the.runs > 0);
    uint64_t bytes[3] = {0};
    for (size_t i = 0; i < MEMORY / GRAIN; i++) bytes[the.rights[i]] += GRAIN;
    assert_true(bytes[PROGRAM_READ] > duck_core_bytes(&shape));
    assert_true(bytes[PROGRAM_WRITE] > GRAIN); // the team, and the step slots behind the weights
    size_t first = 0, writable = MEMORY / GRAIN;
    while (the.rights[first] != PROGRAM_WRITE) first++; // the known answer's weights, the team
    while (the.rights[first] != PROGRAM_READ) first++;
    while (the.rights[--writable] != PROGRAM_WRITE) continue;
    for (size_t i = 0; i < duck_core_bytes(&shape) / GRAIN; i++)
        assert_int_equal(the.rights[first + i], PROGRAM_READ);
    assert_true(writable > first && writable < MEMORY / GRAIN - 1); // behind them lie heads and hashes
    sim_free(s);
    layers_free(l);
}

/* The known answer comes from the program, too: one that fails does not give it. */
static void the_known_answer_is_the_programs(void **state)
{
    (void)state;
    static uint8_t answer[WIRE_PAYLOAD_JUMBO];
    static _Alignas(64) uint8_t memory[KAT_MEMORY];
    struct layers *l = layers_make(&shape, 1, 5);
    struct sim *s = sim_with_program();
    struct mini_host h = mini_host_make(sim_wire(s), (struct siphash_key){1, 2}, 9);
    struct wire_kat k = {.seed = 5};
    open_with(&h, l, "right");
    the.runs = 0;
    assert_true(mini_ask(&h, WIRE_KAT, &k, sizeof k, WIRE_KAT_REPLY, WIRE_KAT_REPLY, answer));
    memcpy(&k, answer, sizeof k);
    assert_int_equal(k.hash, kat_hash(&fp9_scalar, FP9_FP9, memory, 5));
    assert_true(the.runs > 0);
    check_step(&h, l, 1); // nothing of it stays behind
    assert_true(mini_ask(&h, WIRE_CLOSE, NULL, 0, WIRE_CLOSED, WIRE_CLOSED, answer));
    struct mini_host bad = mini_host_make(sim_wire(s), (struct siphash_key){1, 2}, 10);
    open_with(&bad, l, "Fails");
    mini_send(&bad, (struct wire_header){.type = WIRE_KAT, .session = 10, .sequence = 99}, &k, sizeof k);
    do assert_true(mini_receive(&bad, answer, MINI_DEADLINE_NS));
    while (bad.last.type != WIRE_FAULT && bad.last.type != WIRE_KAT_REPLY);
    assert_int_equal(bad.last.type, WIRE_FAULT);
    sim_free(s);
    layers_free(l);
}

static void a_failure_ends_the_session_only(void **state)
{
    (void)state;
    static uint8_t answer[WIRE_PAYLOAD_JUMBO];
    struct layers *l = layers_make(&shape, 1, 5);
    struct sim *s = sim_with_program();
    struct wire_fault fault;
    for (uint32_t round = 0; round < 3; round++) {
        struct mini_host h = mini_host_make(sim_wire(s), (struct siphash_key){1, 2}, 9 + 2 * round);
        open_with(&h, l, "Fails");
        assert_int_equal(h.opened.units_held, round ? l->units : 0); // they stay
        size_t bytes;
        uint8_t *step = layers_step(l, 0, 2, 4, WIRE_F32, WIRE_F32, h.terms.payload, 1, &bytes);
        mini_send_step(&h, 1, step, bytes);
        free(step);
        if (round == 1) { // the report is lost: PING asks for it again
            sim_run(s, 100000000);
            s->to_host.count = 0;
            assert_true(mini_ask(&h, WIRE_PING, NULL, 0, WIRE_FAULT, WIRE_PONG, answer));
        } else {
            do assert_true(mini_receive(&h, answer, MINI_DEADLINE_NS));
            while (h.last.type != WIRE_FAULT);
        }
        assert_int_equal(h.last.type, WIRE_FAULT);
        memcpy(&fault, answer, sizeof fault);
        assert_int_equal(fault.vector, 14);
        assert_int_equal(fault.core, 3);
        assert_string_equal(fault.text, "page fault");
        struct mini_host next = mini_host_make(sim_wire(s), (struct siphash_key){1, 2}, 10 + 2 * round);
        open_with(&next, l, "right");
        assert_int_equal(next.opened.program_held, 0); // a program that failed is forgotten
        assert_int_equal(next.opened.units_held, l->units);
        check_step(&next, l, 1);
        assert_int_equal(sim_stats(&next).faults, round + 1);
        assert_true(mini_ask(&next, WIRE_CLOSE, NULL, 0, WIRE_CLOSED, WIRE_CLOSED, answer));
    }
    assert_non_null(strstr(s->log, "the program failed, vector 14"));
    sim_free(s);
    layers_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_program_sees_weights_and_steps),
        cmocka_unit_test(the_known_answer_is_the_programs),
        cmocka_unit_test(a_failure_ends_the_session_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
