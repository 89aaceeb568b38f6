/* duck_session_test.c: a whole duck on a simulated machine: admission, known answer, log and power. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "duck/kat.h"
#include "tests/duck/duck_common.h"

static void discovery_says_what_the_duck_is(void **state)
{
    (void)state;
    struct sim *s = sim_make(TEST_DUCK_MEMORY, 1);
    struct mini_host h = test_duck_host(s, 9, NULL);
    assert_true(mini_discover(&h));
    assert_string_equal(h.hello.name, "sim");
    assert_int_equal(h.hello.boot_id, 77);
    assert_int_equal(h.hello.link_mbps, 2500);
    assert_int_equal(h.hello.payload, WIRE_PAYLOAD);
    assert_int_equal(h.hello.holder_session, 0);
    assert_true(h.hello.memory_free > TEST_DUCK_MEMORY / 2 && h.hello.memory_free < TEST_DUCK_MEMORY);
    sim_free(s);
}

static void a_wrong_key_gets_no_answer(void **state)
{
    (void)state;
    struct sim *s = sim_make(TEST_DUCK_MEMORY, 1);
    struct mini_host right = test_duck_host(s, 9, NULL),
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
    struct sim *s = sim_make(TEST_DUCK_MEMORY, 1);
    struct mini_host a = test_duck_host(s, 9, NULL), b = test_duck_host(s, 10, NULL);
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
    struct sim *s = sim_make(TEST_DUCK_MEMORY, 1);
    struct mini_host a = test_duck_host(s, 9, NULL), b = test_duck_host(s, 10, NULL);
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
    struct sim *s = sim_make(TEST_DUCK_MEMORY, 1);
    struct mini_host a = test_duck_host(s, 9, NULL), replay;
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
    struct sim *s = sim_make(TEST_DUCK_MEMORY, 1);
    struct mini_host h = test_duck_host(s, 9, NULL);
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
    REFUSED(in_turn, 2);
    h.terms = good;
    h.terms.program_hash = 5; // this platform takes none
    assert_int_equal(mini_open(&h), 0);
    assert_int_equal(h.refused.reason, WIRE_NO_PROGRAM);
    h.terms = good;
    assert_int_equal(mini_open(&h), 1);
    sim_free(s);
}

static void the_known_answer_is_given(void **state)
{
    (void)state;
    struct sim *s = sim_make(TEST_DUCK_MEMORY, 3);
    struct mini_host h = test_duck_host(s, 9, NULL);
    static uint8_t answer[WIRE_PAYLOAD_JUMBO];
    static _Alignas(64) uint8_t memory[KAT_MEMORY];
    assert_true(mini_discover(&h));
    assert_int_equal(mini_open(&h), 1);
    for (uint64_t seed = 1; seed < 4; seed++) {
        struct wire_kat k = {.seed = seed, .format = seed == 2 ? FP9_E4M3 : FP9_FP9};
        assert_true(mini_ask(&h, WIRE_KAT, &k, sizeof k, WIRE_KAT_REPLY, WIRE_KAT_REPLY, answer));
        memcpy(&k, answer, sizeof k);
        assert_int_equal(k.seed, seed);
        assert_int_equal(k.format, seed == 2 ? FP9_E4M3 : FP9_FP9);
        assert_true(k.hash != 0 && k.hash == kat_hash(&fp9_scalar, FP9_FP9, memory, seed));
        assert_true(k.hash != kat_hash(&fp9_scalar, FP9_FP9, memory, seed + 1));
    }
    struct wire_kat unknown = {.seed = 5, .format = FP9_FORMATS};
    assert_false(mini_ask(&h, WIRE_KAT, &unknown, sizeof unknown, WIRE_KAT_REPLY, WIRE_KAT_REPLY, answer));
    sim_free(s);
}

static void log_and_power(void **state)
{
    (void)state;
    struct sim *s = sim_make(TEST_DUCK_MEMORY, 3);
    struct mini_host h = test_duck_host(s, 9, NULL), stranger = test_duck_host(s, 0, NULL);
    static uint8_t answer[WIRE_PAYLOAD_JUMBO];
    assert_true(mini_discover(&h));
    assert_int_equal(mini_open(&h), 1);
    assert_true(mini_ask(&h, WIRE_LOG, NULL, 0, WIRE_LOG_REPLY, WIRE_LOG_REPLY, answer));
    answer[h.last.length] = 0;
    assert_string_equal((char *)answer, "session opened: 00000009\n");
    struct wire_power w = {.action = WIRE_REBOOT};
    stranger.terms.session = 0; // with the flock test_duck_key, but somebody works with this duck
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
        cmocka_unit_test(the_known_answer_is_given),
        cmocka_unit_test(log_and_power),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
