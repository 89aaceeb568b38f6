/* duck_steps_test.c: a whole duck on a simulated machine: steps; with frames lost, repeated, reordered,
 * forged, cut and stale. Results are compared bit for bit with a duck core that saw no network. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/duck/duck_common.h"

static void results_are_the_duck_cores_bit_for_bit(void **state)
{
    (void)state;
    struct test_duck t = test_duck_loaded(1);
    uint32_t number = 1;
    for (uint32_t bank = 0; bank < 3; bank++)
        for (int a = WIRE_F32; a < WIRE_DTYPES; a++)
            for (int r = WIRE_F32; r <= WIRE_BF16; r++) {
                test_duck_check_step(&t.h, t.l, number++, bank, 1, bank ? 3 : 0, (enum wire_dtype)a,
                                     (enum wire_dtype)r);
                test_duck_check_step(&t.h, t.l, number++, bank, 64, bank ? 4 : 0, (enum wire_dtype)a,
                                     (enum wire_dtype)r);
            }
    struct wire_stats st = sim_stats(&t.h);
    assert_int_equal(st.steps, (number - 1) / 3 * 2); // bank 2 is others' business
    assert_int_equal(st.bad_frame + st.bad_tag + st.stranger + st.late, 0);
    assert_int_equal(t.h.step_resends + t.h.result_resends, 0);
    test_duck_free(&t);
}

static void steps_survive_a_bad_wire(void **state)
{
    (void)state;
    struct layers *l = layers_make(&test_duck_shape, 1, 5);
    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct sim *s = sim_make(TEST_DUCK_MEMORY, seed);
        struct mini_host h = test_duck_host(s, 9, l);
        test_duck_open_and_load(&h, l);
        s->lose = 0.02 * (double)seed;
        s->twice = 0.05;
        s->reorder = 0.1;
        for (uint32_t i = 1; i <= 40; i++)
            test_duck_check_step(&h, l, i, i % 2, 1 + i % 30, i % 2 ? 4 : 0, WIRE_F32, WIRE_F32);
        assert_true(h.step_resends + h.result_resends > 0);
        struct wire_stats st = sim_stats(&h);
        assert_int_equal(st.steps, 40); // nothing was computed twice
        assert_true(st.duplicate > 0 && st.resend_asked > 0 && st.resend_served > 0);
        sim_free(s);
    }
    layers_free(l);
}

static void fill_the_window(int in_turn)
{
    enum { STEPS = 24, WINDOW = 4 };
    struct test_duck t = test_duck_make(3);
    t.h.terms.in_turn = (uint8_t)in_turn;
    test_duck_open_and_load(&t.h, t.l);
    uint8_t *step[STEPS + 1];
    size_t bytes[STEPS + 1];
    uint32_t subtrees = duck_core_subtrees(t.l->core, 1, NULL, 0);
    for (uint32_t n = 1; n <= STEPS; n++)
        step[n] = layers_step(t.l, 1, 5, 4, WIRE_BF16, WIRE_F32, WIRE_PAYLOAD, n, &bytes[n]);
    for (uint32_t n = 1; n <= WINDOW; n++) mini_send_step(&t.h, n, step[n], bytes[n]);
    for (uint32_t n = 1; n <= STEPS; n++) {
        size_t values;
        float *expected = layers_expect(t.l, step[n], WIRE_PAYLOAD, &values),
              *out = calloc(values, sizeof *out);
        assert_true(mini_collect(&t.h, n, step[n], bytes[n], subtrees, out, NULL));
        assert_memory_equal(out, expected, values * sizeof *out);
        if (n + WINDOW <= STEPS) mini_send_step(&t.h, n + WINDOW, step[n + WINDOW], bytes[n + WINDOW]);
        free(expected);
        free(out);
    }
    assert_int_equal(sim_stats(&t.h).steps, STEPS);
    for (uint32_t n = 1; n <= STEPS; n++) free(step[n]);
    test_duck_free(&t);
}

static void steps_back_to_back_fill_the_window(void **state)
{
    (void)state;
    fill_the_window(0);
    fill_the_window(1);
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
    struct test_duck t = test_duck_loaded(3);
    static uint8_t answer[WIRE_PAYLOAD_JUMBO];
    size_t bytes;
    uint8_t *step = layers_step(t.l, 1, 8, 4, WIRE_F32, WIRE_F32, WIRE_PAYLOAD, 1, &bytes);
    uint32_t fragments = wire_fragments(bytes, WIRE_PAYLOAD);
    assert_true(fragments >= 6);
    for (uint32_t f = 0; f < fragments; f++)
        if (f != 1 && f != 4) send_part(&t.h, 1, step, bytes, f);
    uint64_t sent = t.s->time;
    assert_true(next_frame(&t.h, answer, WIRE_RESEND, 1000000));
    assert_true(t.s->time - sent >= 200000 && t.s->time - sent < 300000); // gap_us after it was visible
    struct wire_resend r;
    memcpy(&r, answer, sizeof r);
    assert_int_equal(r.first, 1);
    assert_int_equal(answer[sizeof r], 1 | 8);
    send_part(&t.h, 1, step, bytes, 1);
    send_part(&t.h, 1, step, bytes, 4);
    assert_true(next_frame(&t.h, answer, WIRE_STEP_ACK, 1000000));
    assert_true(next_frame(&t.h, answer, WIRE_DONE, 100000000));
    // A whole step that never arrived is asked for when the next one shows up.
    send_part(&t.h, 3, step, bytes, 0);
    assert_true(next_frame(&t.h, answer, WIRE_RESEND, 1000000));
    memcpy(&r, answer, sizeof r);
    assert_int_equal(t.h.last.sequence, 2);
    assert_int_equal(r.count, 0);
    // Only the first fragment came: the duck asks for the rest all the same, and again.
    for (int i = 0; i < 3; i++) {
        do assert_true(next_frame(&t.h, answer, WIRE_RESEND, 100000000));
        while (t.h.last.sequence != 3);
        memcpy(&r, answer, sizeof r);
        assert_int_equal(r.first, 1);
        assert_int_equal(r.count, fragments - 1);
    }
    free(step);
    test_duck_free(&t);
}

static void repeated_and_old_steps_are_harmless(void **state)
{
    (void)state;
    struct test_duck t = test_duck_loaded(3);
    static uint8_t answer[WIRE_PAYLOAD_JUMBO];
    size_t bytes;
    for (uint32_t i = 1; i <= 6; i++) test_duck_check_step(&t.h, t.l, i, 1, 4, 4, WIRE_F32, WIRE_F32);
    uint8_t *step = layers_step(t.l, 1, 4, 4, WIRE_F32, WIRE_F32, WIRE_PAYLOAD, 6, &bytes);
    mini_send_step(&t.h, 6, step, bytes); // its results are there still: acknowledged, not computed again
    assert_true(next_frame(&t.h, answer, WIRE_STEP_ACK, 1000000));
    struct wire_step_ack a;
    memcpy(&a, answer, sizeof a);
    assert_int_equal(a.done, 1);
    mini_send_step(&t.h, 1, step, bytes); // long over
    assert_false(next_frame(&t.h, answer, WIRE_STEP_ACK, 10000000));
    struct wire_stats st = sim_stats(&t.h);
    assert_int_equal(st.steps, 6);
    assert_int_equal(st.late, wire_fragments(bytes, WIRE_PAYLOAD));
    test_duck_check_step(&t.h, t.l, 7, 1, 4, 4, WIRE_F32, WIRE_F32);
    free(step);
    test_duck_free(&t);
}

static void results_are_sent_again_when_asked(void **state)
{
    (void)state;
    struct test_duck t = test_duck_loaded(3);
    static uint8_t first[WIRE_PAYLOAD_JUMBO], again[WIRE_PAYLOAD_JUMBO];
    size_t bytes;
    uint8_t *step = layers_step(t.l, 1, 4, 4, WIRE_F32, WIRE_F32, WIRE_PAYLOAD, 1, &bytes);
    mini_send_step(&t.h, 1, step, bytes);
    do assert_true(next_frame(&t.h, first, WIRE_RESULT, 100000000));
    while (t.h.last.fragment != 2);
    uint16_t length = t.h.last.length;
    assert_true(next_frame(&t.h, again, WIRE_DONE, 100000000));
    uint8_t ask[sizeof(struct wire_resend) + 1] = {2, 0, 1, 0, 0, 0, 0, 0, 1}; // fragment 2
    mini_send(&t.h, (struct wire_header){.type = WIRE_RESEND, .session = 9, .sequence = 1}, ask, sizeof ask);
    assert_true(mini_receive(&t.h, again, 1000000));
    assert_int_equal(t.h.last.type, WIRE_RESULT);
    assert_int_equal(t.h.last.fragment, 2);
    assert_int_equal(t.h.last.length, length);
    assert_memory_equal(first, again, length);
    assert_true(next_frame(&t.h, again, WIRE_DONE, 1000000));
    assert_int_equal(sim_stats(&t.h).resend_served, 1);
    free(step);
    test_duck_free(&t);
}

static void impossible_steps_are_told_so(void **state)
{
    (void)state;
    struct test_duck t = test_duck_make(3);
    static uint8_t answer[WIRE_PAYLOAD_JUMBO];
    struct wire_step_ack a;
    size_t bytes;
    assert_true(mini_discover(&t.h));
    assert_int_equal(mini_open(&t.h), 1);
    uint8_t *step = layers_step(t.l, 1, 4, 4, WIRE_F32, WIRE_F32, WIRE_PAYLOAD, 1, &bytes);
    mini_send_step(&t.h, 1, step, bytes); // before the weights
    assert_true(next_frame(&t.h, answer, WIRE_STEP_ACK, 1000000));
    memcpy(&a, answer, sizeof a);
    assert_int_equal(a.status, WIRE_STEP_NOT_READY);
    assert_true(mini_load(&t.h, t.l));
    static const size_t spoil[] = {0, 4, 8, 12, 13, 16, 33, 36}; // bank, tokens, top_k, dtypes, bytes, ids
    uint32_t number = 1;
    for (size_t i = 0; i < sizeof spoil / sizeof *spoil; i++) {
        uint8_t was = step[spoil[i]];
        step[spoil[i]] = 0xf7;
        mini_send_step(&t.h, number, step, bytes);
        do assert_true(next_frame(&t.h, answer, WIRE_STEP_ACK, 1000000));
        while (t.h.last.sequence != number);
        memcpy(&a, answer, sizeof a);
        assert_int_equal(a.status, WIRE_STEP_BAD);
        step[spoil[i]] = was;
        number++;
    }
    // more fragments than the largest step has, and one beyond its end
    uint64_t bad = sim_stats(&t.h).bad_frame;
    struct wire_header frame = {.type = WIRE_STEP, .session = 9, .sequence = number, .fragments = 65535};
    mini_send(&t.h, frame, step, WIRE_PAYLOAD);
    frame.fragments = 400;
    frame.fragment = 399;
    mini_send(&t.h, frame, step, WIRE_PAYLOAD);
    assert_int_equal(sim_stats(&t.h).bad_frame, bad + 2);
    test_duck_check_step(&t.h, t.l, number, 1, 4, 4, WIRE_F32, WIRE_F32);
    free(step);
    test_duck_free(&t);
}

static void a_slow_link_loses_nothing(void **state)
{
    (void)state;
    struct test_duck t = test_duck_loaded(3);
    t.s->send_room = 2;
    test_duck_check_step(&t.h, t.l, 1, 1, 64, 4, WIRE_F32, WIRE_F32);
    assert_int_equal(t.h.result_resends, 0);
    test_duck_free(&t);
}

static void rubbish_is_counted(void **state)
{
    (void)state;
    struct sim *s = sim_make(TEST_DUCK_MEMORY, 3);
    struct mini_host h = test_duck_host(s, 9, NULL);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_the_duck_cores_bit_for_bit),
        cmocka_unit_test(steps_survive_a_bad_wire),
        cmocka_unit_test(steps_back_to_back_fill_the_window),
        cmocka_unit_test(a_gap_is_asked_for_exactly),
        cmocka_unit_test(repeated_and_old_steps_are_harmless),
        cmocka_unit_test(results_are_sent_again_when_asked),
        cmocka_unit_test(impossible_steps_are_told_so),
        cmocka_unit_test(a_slow_link_loses_nothing),
        cmocka_unit_test(rubbish_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
