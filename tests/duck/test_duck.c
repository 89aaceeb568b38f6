/* test_duck.c: a whole duck on a simulated machine: admission, weights, steps; with frames lost, repeated,
 * reordered, forged, cut and stale. Results are compared bit for bit with a duck core that saw no network. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "duck/kat.h"
#include "tests/duck/sim.h"

enum { MEMORY = 24 << 20 };

static const struct siphash_key key = {1, 2};
static const struct duck_bank_shape banks[] = {{0, 1, 64}, {6, 1, 176}, {4, 2, 24}};
static const struct duck_run runs[] = {{0, 2, 4}, {1, 0, 5}, {1, 9, 11}}; // nothing of bank 2
static const struct duck_shape shape = {.hidden = 392, .banks = 3, .bank = banks, .runs = 3, .run = runs};

static struct mini_host host_of(struct sim *s, uint32_t session, const struct layers *l)
{
    struct mini_host h = mini_host_make(sim_wire(s), key, session);
    if (l) {
        h.terms.plan_hash = wire_object_hash(l->plan, l->plan_bytes);
        h.hidden = l->shape.hidden;
    }
    return h;
}

static void open_and_load(struct mini_host *h, const struct layers *l)
{
    assert_true(mini_discover(h));
    assert_int_equal(mini_open(h), 1);
    assert_true(mini_load(h, l));
}

static void check_step(struct mini_host *h, const struct layers *l, uint32_t number, uint32_t bank,
                       uint32_t tokens, uint32_t top_k, enum wire_dtype activation, enum wire_dtype result)
{
    size_t bytes, values;
    uint8_t *step = layers_step(l, bank, tokens, top_k, activation, result, h->terms.payload, number, &bytes);
    float *expected = layers_expect(l, step, h->terms.payload, &values);
    float *out = calloc(values + 1, sizeof *out);
    struct wire_done done = {0};
    mini_send_step(h, number, step, bytes);
    assert_true(mini_collect(h, number, step, bytes, duck_core_subtrees(l->core, bank, NULL, 0), out, &done));
    assert_memory_equal(out, expected, values * sizeof *out);
    free(step);
    free(expected);
    free(out);
}

/* ---- admission ---- */

static void discovery_says_what_the_duck_is(void **state)
{
    (void)state;
    struct sim *s = sim_make(MEMORY, 1);
    struct mini_host h = host_of(s, 9, NULL);
    assert_true(mini_discover(&h));
    assert_string_equal(h.hello.name, "sim");
    assert_int_equal(h.hello.boot_id, 77);
    assert_int_equal(h.hello.link_mbps, 2500);
    assert_int_equal(h.hello.payload, WIRE_PAYLOAD);
    assert_int_equal(h.hello.holder_session, 0);
    assert_true(h.hello.memory_free > MEMORY / 2 && h.hello.memory_free < MEMORY);
    sim_free(s);
}

static void a_wrong_key_gets_no_answer(void **state)
{
    (void)state;
    struct sim *s = sim_make(MEMORY, 1);
    struct mini_host right = host_of(s, 9, NULL),
                     wrong = mini_host_make(sim_wire(s), (struct siphash_key){1, 3}, 9);
    assert_false(mini_discover(&wrong));
    assert_true(mini_discover(&right));
    assert_int_equal(mini_open(&right), 1);
    assert_true(sim_stats(&right).bad_tag >= 100);
    sim_free(s);
}

static void a_second_host_is_refused_until_the_lease_runs_out(void **state)
{
    (void)state;
    struct sim *s = sim_make(MEMORY, 1);
    struct mini_host a = host_of(s, 9, NULL), b = host_of(s, 10, NULL);
    uint8_t answer[WIRE_PAYLOAD_JUMBO];
    assert_true(mini_discover(&a));
    assert_int_equal(mini_open(&a), 1);
    assert_int_equal(mini_open(&a), 1); // repeated: the same answer
    assert_true(mini_discover(&b));
    assert_int_equal(b.hello.holder_session, 9);
    assert_int_equal(b.hello.holder_address, 0x7f000001);
    assert_int_equal(mini_open(&b), 0);
    assert_int_equal(b.refused.reason, WIRE_BUSY);
    assert_int_equal(b.refused.holder_session, 9);
    assert_true(b.refused.remaining_ms <= 5000 && b.refused.remaining_ms > 4000);
    for (int i = 0; i < 4; i++) { // a sign of life every two seconds keeps it
        sim_run(s, 2000000000);
        assert_true(mini_ask(&a, WIRE_PING, NULL, 0, WIRE_PONG, WIRE_PONG, answer));
    }
    assert_int_equal(mini_open(&b), 0);
    sim_run(s, 5100000000);
    assert_true(mini_discover(&b));
    assert_int_equal(mini_open(&b), 1);
    assert_false(mini_ask(&a, WIRE_PING, NULL, 0, WIRE_PONG, WIRE_PONG, answer)); // has been replaced
    sim_free(s);
}

static void closing_frees_the_duck_at_once(void **state)
{
    (void)state;
    struct sim *s = sim_make(MEMORY, 1);
    struct mini_host a = host_of(s, 9, NULL), b = host_of(s, 10, NULL);
    uint8_t answer[WIRE_PAYLOAD_JUMBO];
    assert_true(mini_discover(&a));
    assert_int_equal(mini_open(&a), 1);
    assert_true(mini_ask(&a, WIRE_CLOSE, NULL, 0, WIRE_CLOSED, WIRE_CLOSED, answer));
    assert_true(mini_ask(&a, WIRE_CLOSE, NULL, 0, WIRE_CLOSED, WIRE_CLOSED, answer)); // CLOSED was lost
    assert_false(mini_ask(&a, WIRE_PING, NULL, 0, WIRE_PONG, WIRE_PONG, answer));
    assert_true(mini_discover(&b));
    assert_int_equal(mini_open(&b), 1);
    sim_free(s);
}

static void an_old_open_opens_nothing(void **state)
{
    (void)state;
    struct sim *s = sim_make(MEMORY, 1);
    struct mini_host a = host_of(s, 9, NULL), replay;
    uint8_t answer[WIRE_PAYLOAD_JUMBO];
    assert_true(mini_discover(&a));
    replay = a; // what an eavesdropper would have
    assert_int_equal(mini_open(&a), 1);
    assert_true(mini_ask(&a, WIRE_CLOSE, NULL, 0, WIRE_CLOSED, WIRE_CLOSED, answer));
    assert_int_equal(mini_open(&replay), 0);
    assert_int_equal(replay.refused.reason, WIRE_BAD_NONCE);
    sim_free(s);
}

static void impossible_terms_are_refused_by_field(void **state)
{
    (void)state;
    struct sim *s = sim_make(MEMORY, 1);
    struct mini_host h = host_of(s, 9, NULL);
    assert_true(mini_discover(&h));
    struct wire_open good = h.terms;
#define REFUSED(field, number)                                                                               \
    do {                                                                                                     \
        h.terms = good;                                                                                      \
        h.terms.field = number;                                                                              \
        assert_int_equal(mini_open(&h), 0);                                                                  \
        assert_int_equal(h.refused.reason, WIRE_BAD_OPEN);                                                   \
        assert_int_equal(h.refused.value, offsetof(struct wire_open, field));                                \
    } while (0)
    REFUSED(payload, 1441);
    REFUSED(payload, WIRE_PAYLOAD_JUMBO); // this duck's link has no jumbo frames
    REFUSED(step_slots, 3);
    REFUSED(step_slots, 0);
    REFUSED(max_tokens, 0);
    REFUSED(lease_ms, 0);
    REFUSED(element_bytes, 3);
    h.terms = good;
    h.terms.program_hash = 5; // this platform takes none
    assert_int_equal(mini_open(&h), 0);
    assert_int_equal(h.refused.reason, WIRE_NO_PROGRAM);
    h.terms = good;
    assert_int_equal(mini_open(&h), 1);
    sim_free(s);
}

/* ---- weights ---- */

static void weights_survive_a_bad_wire(void **state)
{
    (void)state;
    static const uint32_t element_bytes[] = {1, 2, 4};
    for (int i = 0; i < 3; i++) {
        struct layers *l = layers_make(&shape, element_bytes[i], 5);
        struct sim *s = sim_make(MEMORY, 11);
        struct mini_host h = host_of(s, 9, l);
        s->lose = 0.05;
        s->twice = 0.05;
        s->reorder = 0.1;
        open_and_load(&h, l);
        assert_true(h.put_resends > 0);
        assert_int_equal(mini_open(&h), 1); // repeated: the state now
        uint64_t *hashes = calloc(l->units, sizeof *hashes);
        for (uint64_t u = 0; u < l->units; u++) hashes[u] = wire_object_hash(l->unit[u], l->unit_bytes[u]);
        assert_int_equal(h.opened.units_held, l->units);
        assert_int_equal(h.opened.root_hash, wire_root_hash(hashes, l->units));
        check_step(&h, l, 1, 1, 3, 4, WIRE_F32, WIRE_F32);
        free(hashes);
        sim_free(s);
        layers_free(l);
    }
}

static void weights_stay_for_the_next_session(void **state)
{
    (void)state;
    struct layers *l = layers_make(&shape, 1, 5);
    struct sim *s = sim_make(MEMORY, 1);
    struct mini_host a = host_of(s, 9, l), b = host_of(s, 10, l);
    uint8_t answer[WIRE_PAYLOAD_JUMBO];
    open_and_load(&a, l);
    assert_true(mini_ask(&a, WIRE_CLOSE, NULL, 0, WIRE_CLOSED, WIRE_CLOSED, answer));
    b.terms.max_tokens = 20;
    b.terms.step_slots = 8;
    assert_true(mini_discover(&b));
    assert_int_equal(b.hello.plan_hash, b.terms.plan_hash);
    assert_int_equal(mini_open(&b), 1);
    assert_int_equal(b.opened.plan_held, 1);
    assert_int_equal(b.opened.units_held, l->units);
    check_step(&b, l, 1, 1, 20, 6, WIRE_F32, WIRE_F32);
    sim_free(s);
    layers_free(l);
}

/* Hashes of all units as UNITS tells them. */
static void held_hashes_are_told(void **state)
{
    (void)state;
    struct layers *l = layers_make(&shape, 1, 5);
    struct sim *s = sim_make(MEMORY, 1);
    struct mini_host h = host_of(s, 9, l);
    uint8_t answer[WIRE_PAYLOAD_JUMBO];
    assert_true(mini_discover(&h));
    assert_int_equal(mini_open(&h), 1);
    assert_int_equal(mini_put(&h, WIRE_PLAN, 0, l->plan, l->plan_bytes, NULL), WIRE_PUT_HELD);
    assert_int_equal(mini_put(&h, WIRE_UNIT, 2, l->unit[2], l->unit_bytes[2], NULL), WIRE_PUT_HELD);
    struct wire_units ask = {1, 1000};
    struct wire_unit_hashes u;
    assert_true(mini_ask(&h, WIRE_UNITS, &ask, sizeof ask, WIRE_UNIT_HASHES, WIRE_UNIT_HASHES, answer));
    memcpy(&u, answer, sizeof u);
    assert_int_equal(u.units, l->units);
    assert_int_equal(u.units_held, 1);
    assert_int_equal(u.count, l->units - 1);
    assert_int_equal(u.root_hash, 0);
    for (uint32_t i = 0; i < u.count; i++) {
        uint64_t hash;
        memcpy(&hash, answer + sizeof u + 8 * i, sizeof hash);
        assert_int_equal(hash, i == 1 ? wire_object_hash(l->unit[2], l->unit_bytes[2]) : 0);
    }
    sim_free(s);
    layers_free(l);
}

static void a_new_version_of_a_unit_replaces_the_old(void **state)
{
    (void)state;
    struct layers *l = layers_make(&shape, 1, 5), *m = layers_make(&shape, 1, 6);
    struct sim *s = sim_make(MEMORY, 1);
    struct mini_host h = host_of(s, 9, l);
    open_and_load(&h, l);
    check_step(&h, l, 1, 1, 2, 3, WIRE_F32, WIRE_F32);
    assert_true(mini_load(&h, m));
    check_step(&h, m, 2, 1, 2, 3, WIRE_F32, WIRE_F32);
    sim_free(s);
    layers_free(l);
    layers_free(m);
}

static void one_flipped_weight_changes_the_result(void **state)
{
    (void)state;
    struct layers *l = layers_make(&shape, 1, 5);
    struct sim *s = sim_make(MEMORY, 1);
    struct mini_host h = host_of(s, 9, l);
    open_and_load(&h, l);
    struct wire_unit_id id = {1, 2, DUCK_DOWN};
    uint64_t u = wire_unit_number(&shape, id);
    l->unit[u][l->unit_bytes[u] - 1] ^= 0x80; // a sign
    if ((l->unit[u][l->unit_bytes[u] - 1] & 0x7f) == 0) l->unit[u][l->unit_bytes[u] - 1] |= 0x30;
    assert_int_equal(mini_put(&h, WIRE_UNIT, (uint32_t)u, l->unit[u], l->unit_bytes[u], NULL), WIRE_PUT_HELD);
    size_t bytes, values;
    uint8_t *step = layers_step(l, 1, 1, 6, WIRE_F32, WIRE_F32, WIRE_PAYLOAD, 1, &bytes);
    float *expected = layers_expect(l, step, WIRE_PAYLOAD, &values), *out = calloc(values, sizeof *out);
    mini_send_step(&h, 1, step, bytes);
    assert_true(mini_collect(&h, 1, step, bytes, duck_core_subtrees(l->core, 1, NULL, 0), out, NULL));
    assert_memory_not_equal(out, expected, values * sizeof *out);
    free(step);
    free(expected);
    free(out);
    sim_free(s);
    layers_free(l);
}

static void bad_objects_are_refused(void **state)
{
    (void)state;
    struct layers *l = layers_make(&shape, 1, 5);
    struct sim *s = sim_make(MEMORY, 1);
    struct mini_host h = host_of(s, 9, l);
    struct wire_put_ack ack;
    assert_true(mini_discover(&h));
    assert_int_equal(mini_open(&h), 1);
    // a unit before the plan, a plan that OPEN did not announce
    assert_int_equal(mini_put(&h, WIRE_UNIT, 0, l->unit[0], l->unit_bytes[0], &ack), WIRE_PUT_REFUSED);
    assert_int_equal(ack.reason, WIRE_PUT_BAD_OBJECT);
    assert_int_equal(mini_put(&h, WIRE_PLAN, 0, l->unit[0], 100, &ack), WIRE_PUT_REFUSED);
    assert_int_equal(ack.reason, WIRE_PUT_BAD_HASH);
    assert_int_equal(mini_put(&h, WIRE_PLAN, 0, l->plan, l->plan_bytes, &ack), WIRE_PUT_HELD);
    // a unit that does not exist, the bytes of another, a NaN, a bad scale
    assert_int_equal(mini_put(&h, WIRE_UNIT, (uint32_t)l->units, l->unit[0], l->unit_bytes[0], &ack),
                     WIRE_PUT_REFUSED);
    assert_int_equal(mini_put(&h, WIRE_UNIT, 2, l->unit[0], l->unit_bytes[0], &ack), WIRE_PUT_REFUSED);
    assert_int_equal(ack.reason, WIRE_PUT_BAD_OBJECT);
    l->unit[0][l->unit_bytes[0] - 5] = 0x7f;
    assert_int_equal(mini_put(&h, WIRE_UNIT, 0, l->unit[0], l->unit_bytes[0], &ack), WIRE_PUT_REFUSED);
    assert_int_equal(ack.reason, WIRE_PUT_BAD_WEIGHT);
    assert_int_equal(ack.value, (uint64_t)8 * runs[0].count * shape.hidden - 5);
    memset(l->unit[1] + sizeof(struct wire_unit) + 4, 0, 4);
    assert_int_equal(mini_put(&h, WIRE_UNIT, 1, l->unit[1], l->unit_bytes[1], &ack), WIRE_PUT_REFUSED);
    assert_int_equal(ack.reason, WIRE_PUT_BAD_SCALE);
    assert_int_equal(ack.value, 1);
    sim_free(s);
    layers_free(l);
}

static void impossible_plans_are_refused(void **state)
{
    (void)state;
    static const struct duck_bank_shape wide[] = {{200, 1, 2048}};
    static const struct duck_run overlap[] = {{0, 0, 5}, {0, 4, 5}}, all[] = {{0, 0, 256}};
    const struct duck_shape too_large = {.hidden = 7168, .banks = 1, .bank = wide, .runs = 1, .run = all};
    const struct duck_shape overlapping = {.hidden = 64, .banks = 1, .bank = wide, .runs = 2, .run = overlap};
    const struct duck_shape *bad[] = {&too_large, &overlapping};
    static const uint32_t reason[] = {WIRE_PUT_NO_MEMORY, WIRE_PUT_BAD_PLAN};
    for (int i = 0; i < 2; i++) {
        struct sim *s = sim_make(MEMORY, 1);
        struct mini_host h = host_of(s, 9, NULL);
        struct wire_put_ack ack;
        uint8_t plan[256];
        size_t bytes = wire_plan_bytes(bad[i]);
        wire_plan_write(bad[i], plan);
        h.terms.plan_hash = wire_object_hash(plan, bytes);
        assert_true(mini_discover(&h));
        assert_int_equal(mini_open(&h), 1);
        assert_int_equal(mini_put(&h, WIRE_PLAN, 0, plan, bytes, &ack), WIRE_PUT_REFUSED);
        assert_int_equal(ack.reason, reason[i]);
        if (i == 0) assert_true(ack.value > (uint64_t)3 << 30 && ack.available < MEMORY);
        sim_free(s);
    }
}

static void steps_too_large_for_the_memory_are_refused(void **state)
{
    (void)state;
    struct layers *l = layers_make(&shape, 1, 5);
    struct sim *s = sim_make(MEMORY, 1);
    struct mini_host h = host_of(s, 9, l);
    struct wire_put_ack ack;
    uint8_t answer[WIRE_PAYLOAD_JUMBO];
    h.terms.max_tokens = 8000;
    assert_true(mini_discover(&h));
    assert_int_equal(mini_open(&h), 1);
    assert_int_equal(mini_put(&h, WIRE_PLAN, 0, l->plan, l->plan_bytes, &ack), WIRE_PUT_REFUSED);
    assert_int_equal(ack.reason, WIRE_PUT_NO_MEMORY);
    assert_true(ack.value > ack.available);
    assert_true(mini_ask(&h, WIRE_CLOSE, NULL, 0, WIRE_CLOSED, WIRE_CLOSED, answer));
    h.terms.max_tokens = 8;
    assert_true(mini_discover(&h));
    assert_int_equal(mini_open(&h), 1);
    assert_true(mini_load(&h, l));
    check_step(&h, l, 1, 0, 8, 0, WIRE_F32, WIRE_F32);
    sim_free(s);
    layers_free(l);
}

/* ---- steps ---- */

static void results_are_the_duck_cores_bit_for_bit(void **state)
{
    (void)state;
    struct layers *l = layers_make(&shape, 1, 5);
    struct sim *s = sim_make(MEMORY, 1);
    struct mini_host h = host_of(s, 9, l);
    open_and_load(&h, l);
    uint32_t number = 1;
    for (uint32_t bank = 0; bank < 3; bank++)
        for (int a = WIRE_F32; a < WIRE_DTYPES; a++)
            for (int r = WIRE_F32; r <= WIRE_BF16; r++) {
                check_step(&h, l, number++, bank, 1, bank ? 3 : 0, (enum wire_dtype)a, (enum wire_dtype)r);
                check_step(&h, l, number++, bank, 64, bank ? 4 : 0, (enum wire_dtype)a, (enum wire_dtype)r);
            }
    struct wire_stats st = sim_stats(&h);
    assert_int_equal(st.steps, (number - 1) / 3 * 2); // bank 2 is others' business
    assert_int_equal(st.bad_frame + st.bad_tag + st.stranger + st.late, 0);
    assert_int_equal(h.step_resends + h.result_resends, 0);
    sim_free(s);
    layers_free(l);
}

static void steps_survive_a_bad_wire(void **state)
{
    (void)state;
    struct layers *l = layers_make(&shape, 1, 5);
    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct sim *s = sim_make(MEMORY, seed);
        struct mini_host h = host_of(s, 9, l);
        open_and_load(&h, l);
        s->lose = 0.02 * (double)seed;
        s->twice = 0.05;
        s->reorder = 0.1;
        for (uint32_t i = 1; i <= 40; i++)
            check_step(&h, l, i, i % 2, 1 + i % 30, i % 2 ? 4 : 0, WIRE_F32, WIRE_F32);
        assert_true(h.step_resends + h.result_resends > 0);
        struct wire_stats st = sim_stats(&h);
        assert_int_equal(st.steps, 40); // nothing was computed twice
        assert_true(st.duplicate > 0 && st.resend_asked > 0 && st.resend_served > 0);
        sim_free(s);
    }
    layers_free(l);
}

static void steps_back_to_back_fill_the_window(void **state)
{
    (void)state;
    enum { STEPS = 24, WINDOW = 4 };
    struct layers *l = layers_make(&shape, 1, 5);
    struct sim *s = sim_make(MEMORY, 3);
    struct mini_host h = host_of(s, 9, l);
    open_and_load(&h, l);
    uint8_t *step[STEPS + 1];
    size_t bytes[STEPS + 1];
    uint32_t subtrees = duck_core_subtrees(l->core, 1, NULL, 0);
    for (uint32_t n = 1; n <= STEPS; n++)
        step[n] = layers_step(l, 1, 5, 4, WIRE_BF16, WIRE_F32, WIRE_PAYLOAD, n, &bytes[n]);
    for (uint32_t n = 1; n <= WINDOW; n++) mini_send_step(&h, n, step[n], bytes[n]);
    for (uint32_t n = 1; n <= STEPS; n++) {
        size_t values;
        float *expected = layers_expect(l, step[n], WIRE_PAYLOAD, &values),
              *out = calloc(values, sizeof *out);
        assert_true(mini_collect(&h, n, step[n], bytes[n], subtrees, out, NULL));
        assert_memory_equal(out, expected, values * sizeof *out);
        if (n + WINDOW <= STEPS) mini_send_step(&h, n + WINDOW, step[n + WINDOW], bytes[n + WINDOW]);
        free(expected);
        free(out);
    }
    assert_int_equal(sim_stats(&h).steps, STEPS);
    for (uint32_t n = 1; n <= STEPS; n++) free(step[n]);
    sim_free(s);
    layers_free(l);
}

/* Frames of a step sent by hand; what the duck says is read from the wire. */
static int next_frame(struct mini_host *h, uint8_t *payload, enum wire_type type, uint64_t ns)
{
    uint64_t until = h->wire.now(h->wire.self) + ns;
    while (h->wire.now(h->wire.self) < until)
        if (mini_receive(h, payload, until - h->wire.now(h->wire.self)) && h->last.type == type) return 1;
    return 0;
}

static void send_part(struct mini_host *h, uint32_t number, const uint8_t *step, size_t bytes, uint32_t f)
{
    size_t at = (size_t)f * WIRE_PAYLOAD;
    mini_send(h,
              (struct wire_header){.type = WIRE_STEP,
                                   .session = h->terms.session,
                                   .sequence = number,
                                   .fragment = (uint16_t)f,
                                   .fragments = (uint16_t)wire_fragments(bytes, WIRE_PAYLOAD)},
              step + at, (uint32_t)(bytes - at < WIRE_PAYLOAD ? bytes - at : WIRE_PAYLOAD));
}

static void a_gap_is_asked_for_exactly(void **state)
{
    (void)state;
    struct layers *l = layers_make(&shape, 1, 5);
    struct sim *s = sim_make(MEMORY, 3);
    struct mini_host h = host_of(s, 9, l);
    static uint8_t answer[WIRE_PAYLOAD_JUMBO];
    size_t bytes;
    open_and_load(&h, l);
    uint8_t *step = layers_step(l, 1, 8, 4, WIRE_F32, WIRE_F32, WIRE_PAYLOAD, 1, &bytes);
    uint32_t fragments = wire_fragments(bytes, WIRE_PAYLOAD);
    assert_true(fragments >= 6);
    for (uint32_t f = 0; f < fragments; f++)
        if (f != 1 && f != 4) send_part(&h, 1, step, bytes, f);
    uint64_t sent = s->time;
    assert_true(next_frame(&h, answer, WIRE_RESEND, 1000000));
    assert_true(s->time - sent >= 200000 && s->time - sent < 300000); // gap_us after it was visible
    struct wire_resend r;
    memcpy(&r, answer, sizeof r);
    assert_int_equal(r.first, 1);
    assert_int_equal(answer[sizeof r], 1 | 8);
    send_part(&h, 1, step, bytes, 1);
    send_part(&h, 1, step, bytes, 4);
    assert_true(next_frame(&h, answer, WIRE_STEP_ACK, 1000000));
    assert_true(next_frame(&h, answer, WIRE_DONE, 100000000));
    // A whole step that never arrived is asked for when the next one shows up.
    send_part(&h, 3, step, bytes, 0);
    assert_true(next_frame(&h, answer, WIRE_RESEND, 1000000));
    memcpy(&r, answer, sizeof r);
    assert_int_equal(h.last.sequence, 2);
    assert_int_equal(r.count, 0);
    // Only the first fragment came: the duck asks for the rest all the same, and again.
    for (int i = 0; i < 3; i++) {
        do assert_true(next_frame(&h, answer, WIRE_RESEND, 100000000));
        while (h.last.sequence != 3);
        memcpy(&r, answer, sizeof r);
        assert_int_equal(r.first, 1);
        assert_int_equal(r.count, fragments - 1);
    }
    free(step);
    sim_free(s);
    layers_free(l);
}

static void repeated_and_old_steps_are_harmless(void **state)
{
    (void)state;
    struct layers *l = layers_make(&shape, 1, 5);
    struct sim *s = sim_make(MEMORY, 3);
    struct mini_host h = host_of(s, 9, l);
    static uint8_t answer[WIRE_PAYLOAD_JUMBO];
    size_t bytes;
    open_and_load(&h, l);
    for (uint32_t i = 1; i <= 6; i++) check_step(&h, l, i, 1, 4, 4, WIRE_F32, WIRE_F32);
    uint8_t *step = layers_step(l, 1, 4, 4, WIRE_F32, WIRE_F32, WIRE_PAYLOAD, 6, &bytes);
    mini_send_step(&h, 6, step, bytes); // its results are there still: acknowledged, not computed again
    assert_true(next_frame(&h, answer, WIRE_STEP_ACK, 1000000));
    struct wire_step_ack a;
    memcpy(&a, answer, sizeof a);
    assert_int_equal(a.done, 1);
    mini_send_step(&h, 1, step, bytes); // long over
    assert_false(next_frame(&h, answer, WIRE_STEP_ACK, 10000000));
    struct wire_stats st = sim_stats(&h);
    assert_int_equal(st.steps, 6);
    assert_int_equal(st.late, wire_fragments(bytes, WIRE_PAYLOAD));
    check_step(&h, l, 7, 1, 4, 4, WIRE_F32, WIRE_F32);
    free(step);
    sim_free(s);
    layers_free(l);
}

static void results_are_sent_again_when_asked(void **state)
{
    (void)state;
    struct layers *l = layers_make(&shape, 1, 5);
    struct sim *s = sim_make(MEMORY, 3);
    struct mini_host h = host_of(s, 9, l);
    static uint8_t first[WIRE_PAYLOAD_JUMBO], again[WIRE_PAYLOAD_JUMBO];
    size_t bytes;
    open_and_load(&h, l);
    uint8_t *step = layers_step(l, 1, 4, 4, WIRE_F32, WIRE_F32, WIRE_PAYLOAD, 1, &bytes);
    mini_send_step(&h, 1, step, bytes);
    do assert_true(next_frame(&h, first, WIRE_RESULT, 100000000));
    while (h.last.fragment != 2);
    uint16_t length = h.last.length;
    assert_true(next_frame(&h, again, WIRE_DONE, 100000000));
    uint8_t ask[sizeof(struct wire_resend) + 1] = {2, 0, 1, 0, 0, 0, 0, 0, 1}; // fragment 2
    mini_send(&h, (struct wire_header){.type = WIRE_RESEND, .session = 9, .sequence = 1}, ask, sizeof ask);
    assert_true(mini_receive(&h, again, 1000000));
    assert_int_equal(h.last.type, WIRE_RESULT);
    assert_int_equal(h.last.fragment, 2);
    assert_int_equal(h.last.length, length);
    assert_memory_equal(first, again, length);
    assert_true(next_frame(&h, again, WIRE_DONE, 1000000));
    assert_int_equal(sim_stats(&h).resend_served, 1);
    free(step);
    sim_free(s);
    layers_free(l);
}

static void impossible_steps_are_told_so(void **state)
{
    (void)state;
    struct layers *l = layers_make(&shape, 1, 5);
    struct sim *s = sim_make(MEMORY, 3);
    struct mini_host h = host_of(s, 9, l);
    static uint8_t answer[WIRE_PAYLOAD_JUMBO];
    struct wire_step_ack a;
    size_t bytes;
    assert_true(mini_discover(&h));
    assert_int_equal(mini_open(&h), 1);
    uint8_t *step = layers_step(l, 1, 4, 4, WIRE_F32, WIRE_F32, WIRE_PAYLOAD, 1, &bytes);
    mini_send_step(&h, 1, step, bytes); // before the weights
    assert_true(next_frame(&h, answer, WIRE_STEP_ACK, 1000000));
    memcpy(&a, answer, sizeof a);
    assert_int_equal(a.status, WIRE_STEP_NOT_READY);
    assert_true(mini_load(&h, l));
    static const size_t spoil[] = {0, 4, 8, 12, 13, 16, 33, 36}; // bank, tokens, top_k, dtypes, bytes, ids
    uint32_t number = 1;
    for (size_t i = 0; i < sizeof spoil / sizeof *spoil; i++) {
        uint8_t was = step[spoil[i]];
        step[spoil[i]] = 0xf7;
        mini_send_step(&h, number, step, bytes);
        do assert_true(next_frame(&h, answer, WIRE_STEP_ACK, 1000000));
        while (h.last.sequence != number);
        memcpy(&a, answer, sizeof a);
        assert_int_equal(a.status, WIRE_STEP_BAD);
        step[spoil[i]] = was;
        number++;
    }
    // more fragments than the largest step has, and one beyond its end
    uint64_t bad = sim_stats(&h).bad_frame;
    struct wire_header frame = {.type = WIRE_STEP, .session = 9, .sequence = number, .fragments = 65535};
    mini_send(&h, frame, step, WIRE_PAYLOAD);
    frame.fragments = 400;
    frame.fragment = 399;
    mini_send(&h, frame, step, WIRE_PAYLOAD);
    assert_int_equal(sim_stats(&h).bad_frame, bad + 2);
    check_step(&h, l, number, 1, 4, 4, WIRE_F32, WIRE_F32);
    free(step);
    sim_free(s);
    layers_free(l);
}

static void a_slow_link_loses_nothing(void **state)
{
    (void)state;
    struct layers *l = layers_make(&shape, 1, 5);
    struct sim *s = sim_make(MEMORY, 3);
    struct mini_host h = host_of(s, 9, l);
    open_and_load(&h, l);
    s->send_room = 2;
    check_step(&h, l, 1, 1, 64, 4, WIRE_F32, WIRE_F32);
    assert_int_equal(h.result_resends, 0);
    sim_free(s);
    layers_free(l);
}

static void rubbish_is_counted(void **state)
{
    (void)state;
    struct sim *s = sim_make(MEMORY, 3);
    struct mini_host h = host_of(s, 9, NULL);
    static uint8_t d[WIRE_DATAGRAM_MAX];
    assert_true(mini_discover(&h));
    assert_int_equal(mini_open(&h), 1);
    struct wire_header ping = {.type = WIRE_PING, .session = 9, .sequence = 1, .source = WIRE_HOST};
    uint32_t bytes = wire_seal(d, ping, &h.key);
    h.wire.send(h.wire.self, d, bytes - 1);  // runt
    h.wire.send(h.wire.self, d, bytes + 10); // longer than it says
    d[24] ^= 1;
    h.wire.send(h.wire.self, d, bytes); // forged
    ping.session = 8;
    h.wire.send(h.wire.self, d, wire_seal(d, ping, &h.key)); // another session
    ping.session = 9;
    ping.source = 3;
    h.wire.send(h.wire.self, d, wire_seal(d, ping, &h.key)); // not from a host
    struct wire_stats st = sim_stats(&h);
    assert_int_equal(st.bad_frame, 2);
    assert_int_equal(st.bad_tag, 1);
    assert_int_equal(st.stranger, 2);
    sim_free(s);
}

static void the_known_answer_is_given(void **state)
{
    (void)state;
    struct sim *s = sim_make(MEMORY, 3);
    struct mini_host h = host_of(s, 9, NULL);
    static uint8_t answer[WIRE_PAYLOAD_JUMBO];
    static _Alignas(64) uint8_t memory[KAT_MEMORY];
    assert_true(mini_discover(&h));
    assert_int_equal(mini_open(&h), 1);
    for (uint64_t seed = 1; seed < 4; seed++) {
        struct wire_kat k = {.seed = seed};
        assert_true(mini_ask(&h, WIRE_KAT, &k, sizeof k, WIRE_KAT_REPLY, WIRE_KAT_REPLY, answer));
        memcpy(&k, answer, sizeof k);
        assert_int_equal(k.seed, seed);
        assert_true(k.hash != 0 && k.hash == kat_hash(&fp9_scalar, memory, seed));
        assert_true(k.hash != kat_hash(&fp9_scalar, memory, seed + 1));
    }
    sim_free(s);
}

static void log_and_power(void **state)
{
    (void)state;
    struct sim *s = sim_make(MEMORY, 3);
    struct mini_host h = host_of(s, 9, NULL), stranger = host_of(s, 0, NULL);
    static uint8_t answer[WIRE_PAYLOAD_JUMBO];
    assert_true(mini_discover(&h));
    assert_int_equal(mini_open(&h), 1);
    assert_true(mini_ask(&h, WIRE_LOG, NULL, 0, WIRE_LOG_REPLY, WIRE_LOG_REPLY, answer));
    answer[h.last.length] = 0;
    assert_string_equal((char *)answer, "session opened: 9\n");
    struct wire_power w = {.action = WIRE_REBOOT};
    stranger.terms.session = 0; // with the flock key, but somebody works with this duck
    mini_discover(&stranger);
    memcpy(w.duck_nonce, stranger.hello.nonce, WIRE_NONCE);
    assert_false(mini_ask(&stranger, WIRE_POWER, &w, sizeof w, WIRE_POWER_ACK, WIRE_POWER_ACK, answer));
    assert_int_equal(s->power, 0);
    assert_true(mini_ask(&h, WIRE_POWER, &w, sizeof w, WIRE_POWER_ACK, WIRE_POWER_ACK, answer));
    assert_int_equal(s->power, 1);
    w.action = WIRE_POWER_OFF; // now it is free; the nonce still holds
    assert_true(mini_ask(&stranger, WIRE_POWER, &w, sizeof w, WIRE_POWER_ACK, WIRE_POWER_ACK, answer));
    assert_int_equal(s->power, 2);
    sim_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(discovery_says_what_the_duck_is),
        cmocka_unit_test(a_wrong_key_gets_no_answer),
        cmocka_unit_test(a_second_host_is_refused_until_the_lease_runs_out),
        cmocka_unit_test(closing_frees_the_duck_at_once),
        cmocka_unit_test(an_old_open_opens_nothing),
        cmocka_unit_test(impossible_terms_are_refused_by_field),
        cmocka_unit_test(weights_survive_a_bad_wire),
        cmocka_unit_test(weights_stay_for_the_next_session),
        cmocka_unit_test(held_hashes_are_told),
        cmocka_unit_test(a_new_version_of_a_unit_replaces_the_old),
        cmocka_unit_test(one_flipped_weight_changes_the_result),
        cmocka_unit_test(bad_objects_are_refused),
        cmocka_unit_test(impossible_plans_are_refused),
        cmocka_unit_test(steps_too_large_for_the_memory_are_refused),
        cmocka_unit_test(results_are_the_duck_cores_bit_for_bit),
        cmocka_unit_test(steps_survive_a_bad_wire),
        cmocka_unit_test(steps_back_to_back_fill_the_window),
        cmocka_unit_test(a_gap_is_asked_for_exactly),
        cmocka_unit_test(repeated_and_old_steps_are_harmless),
        cmocka_unit_test(results_are_sent_again_when_asked),
        cmocka_unit_test(impossible_steps_are_told_so),
        cmocka_unit_test(a_slow_link_loses_nothing),
        cmocka_unit_test(rubbish_is_counted),
        cmocka_unit_test(the_known_answer_is_given),
        cmocka_unit_test(log_and_power),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
