/* blocks_test.c: one plan after the other on the same duck: runs that stay keep their weights, and whatever
 * had to be moved, cleared or thrown out, results are those of a duck core that holds this plan only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/duck/sim.h"
#include "tests/fp9/fp9_random.h"

enum { RUNS = 24, PLANS = 40 };

static const struct duck_bank_shape banks[] = {{6, 1, 176}, {0, 1, 96}, {4, 2, 48}};
static const struct duck_run whole_run[] = {{0, 0, 22}, {1, 0, 12}, {2, 0, 6}};
static const struct duck_shape whole = {
    .hidden = 392, .banks = 3, .bank = banks, .runs = 3, .run = whole_run};
static uint64_t memory = 24 << 20;

/* Slices dealt out at random, in pieces that may lie side by side; one plan in four keeps e4m3. */
static struct duck_shape random_shape(struct duck_run run[RUNS], uint64_t *seed)
{
    struct duck_shape s = {.hidden = whole.hidden, .banks = whole.banks, .bank = banks, .run = run};
    for (uint32_t b = 0; b < whole.banks; b++)
        for (uint32_t at = 0, slices = banks[b].width / 8; at < slices && s.runs < RUNS;) {
            // Few sizes, at few places, so that runs come again.
            uint32_t count = 1u << random_below(seed, 4);
            if (count > slices - at) count = slices - at;
            if (random_below(seed, 3)) run[s.runs++] = (struct duck_run){b, at, count};
            at += count;
        }
    s.format = random_below(seed, 4) == 0 ? FP9_E4M3 : FP9_FP9;
    return s;
}

static uint32_t units_of_bank(uint32_t bank)
{
    return 3 * (banks[bank].routed + banks[bank].always);
}

/* Units of the runs that `b` shares with `a`. */
static uint32_t shared_units(const struct duck_shape *a, const struct duck_shape *b)
{
    uint32_t units = 0;
    for (uint32_t i = 0; i < a->runs && a->format == b->format; i++)
        for (uint32_t k = 0; k < b->runs; k++)
            if (memcmp(&a->run[i], &b->run[k], sizeof a->run[i]) == 0) units += units_of_bank(a->run[i].bank);
    return units;
}

static struct wire_unit_hashes ask_units(struct mini_host *h)
{
    uint8_t answer[WIRE_PAYLOAD_JUMBO];
    struct wire_units ask = {0, 0};
    struct wire_unit_hashes u;
    assert_true(mini_ask(h, WIRE_UNITS, &ask, sizeof ask, WIRE_UNIT_HASHES, WIRE_UNIT_HASHES, answer));
    memcpy(&u, answer, sizeof u);
    return u;
}

static void check_steps(struct mini_host *h, const struct layers *l, uint32_t number)
{
    for (uint32_t bank = 0; bank < whole.banks; bank++, number++) {
        uint32_t subtrees = duck_core_subtrees(l->core, bank, NULL, 0);
        if (subtrees == 0) continue;
        size_t bytes, values;
        uint8_t *step = layers_step(l, bank, 2, banks[bank].routed ? 3 : 0, WIRE_F32, WIRE_F32,
                                    h->terms.payload, number, &bytes);
        float *expected = layers_expect(l, step, h->terms.payload, &values);
        float *out = calloc(values + 1, sizeof *out);
        assert_non_null(out);
        mini_send_step(h, number, step, bytes);
        assert_true(mini_collect(h, number, step, bytes, subtrees, out, NULL));
        assert_memory_equal(out, expected, values * sizeof *out);
        free(step);
        free(expected);
        free(out);
    }
}

static struct mini_host open_for(struct sim *s, uint32_t session, const struct layers *l)
{
    struct mini_host h = mini_host_make(sim_wire(s), (struct siphash_key){1, 2}, session);
    h.terms.plan_hash = wire_object_hash(l->plan, l->plan_bytes);
    h.hidden = l->shape.hidden;
    h.terms.max_tokens = 2 + session % 3 * 4; // the session's memory changes with it
    assert_true(mini_discover(&h));
    assert_int_equal(mini_open(&h), 1);
    return h;
}

static void close_session(struct mini_host *h)
{
    uint8_t answer[WIRE_PAYLOAD_JUMBO];
    assert_true(mini_ask(h, WIRE_CLOSE, NULL, 0, WIRE_CLOSED, WIRE_CLOSED, answer));
}

/* Returns the units that were kept over all plans; *refused: plans that did not fit. */
static uint32_t run_plans(uint64_t bytes, bool roomy, uint32_t *refused)
{
    struct layers *all = layers_make(&whole, 1, 5);
    struct sim *s = sim_make(bytes, 11);
    uint64_t seed = 3;
    struct duck_run before_run[RUNS], run[RUNS];
    struct duck_shape before = {0}, shape;
    uint32_t kept = 0;
    *refused = 0;
    for (uint32_t i = 0; i < PLANS; i++) {
        shape = random_shape(run, &seed);
        struct layers *l = layers_from(&shape, all->tensor, all->tensors);
        struct mini_host h = open_for(s, 10 + i, l);
        struct wire_put_ack ack;
        int status = mini_put(&h, WIRE_PLAN, 0, l->plan, l->plan_bytes, &ack);
        if (status == WIRE_PUT_HELD) {
            struct wire_unit_hashes u = ask_units(&h);
            assert_int_equal(u.units, l->units);
            if (roomy) assert_true(u.units_held >= shared_units(&before, &shape));
            kept += u.units_held;
            assert_true(mini_load(&h, l));
            check_steps(&h, l, 1);
            memcpy(before_run, run, sizeof run);
            before = shape;
            before.run = before_run;
        } else {
            assert_int_equal(status, WIRE_PUT_REFUSED);
            assert_int_equal(ack.reason, WIRE_PUT_NO_MEMORY);
            assert_true(ack.value > ack.available);
            ++*refused;
        }
        close_session(&h);
        layers_free(l);
    }
    sim_free(s);
    layers_free(all);
    return kept;
}

static void what_stays_is_kept(void **state)
{
    (void)state;
    uint32_t refused, kept = run_plans(memory, true, &refused);
    print_message("%u units kept\n", kept);
    assert_int_equal(refused, 0);
    assert_true(kept > 500);
}

/* Hardly more memory than the largest plan needs: blocks are thrown out and pushed together all the time. */
static void scarce_memory_keeps_what_it_can(void **state)
{
    (void)state;
    struct layers *l = layers_make(&whole, 1, 5);
    uint64_t enough = 4 << 20;
    // First the duck tells what the weights need, then what the session needs as well.
    for (int status = 0; status != WIRE_PUT_HELD;) {
        struct sim *s = sim_make(enough, 1);
        struct mini_host h = open_for(s, 12, l);
        struct wire_put_ack ack;
        status = mini_put(&h, WIRE_PLAN, 0, l->plan, l->plan_bytes, &ack);
        if (status != WIRE_PUT_HELD) {
            assert_int_equal(ack.reason, WIRE_PUT_NO_MEMORY);
            assert_true(ack.value > ack.available);
            enough += ack.value - ack.available;
        }
        sim_free(s);
    }
    layers_free(l);
    uint32_t refused, kept = 0;
    for (uint64_t less = 0; less <= enough / 4; less += enough / 16) {
        kept = run_plans((enough - less) / 64 * 64, false, &refused);
        print_message("%llu bytes: %u units kept, %u of %u plans refused\n",
                      (unsigned long long)(enough - less), kept, refused, PLANS);
        assert_true(refused < PLANS / 2);
        assert_true(kept > 100);
    }
}

/* The same plan for a session that needs more memory, and a plan that comes back after another one. */
static void a_plan_that_comes_back_costs_nothing(void **state)
{
    (void)state;
    static const struct duck_run run_a[] = {{0, 0, 8}, {1, 0, 4}},
                                 run_b[] = {{0, 0, 8}, {0, 8, 2}, {2, 0, 4}};
    struct duck_shape a = whole, b = whole;
    a.runs = 2;
    a.run = run_a;
    b.runs = 3;
    b.run = run_b;
    struct layers *all = layers_make(&whole, 1, 5), *la = layers_from(&a, all->tensor, all->tensors),
                  *lb = layers_from(&b, all->tensor, all->tensors);
    struct sim *s = sim_make(memory, 1);
    const struct layers *turn[] = {la, lb, la, lb};
    for (uint32_t i = 0; i < 4; i++) {
        struct mini_host h = open_for(s, 20 + i, turn[i]);
        assert_int_equal(mini_put(&h, WIRE_PLAN, 0, turn[i]->plan, turn[i]->plan_bytes, NULL), WIRE_PUT_HELD);
        uint32_t held = ask_units(&h).units_held;
        assert_int_equal(held, i == 0 ? 0 : i == 1 ? units_of_bank(0) : turn[i]->units);
        assert_true(mini_load(&h, turn[i]));
        check_steps(&h, turn[i], 1);
        close_session(&h);
    }
    sim_free(s);
    layers_free(la);
    layers_free(lb);
    layers_free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_stays_is_kept),
        cmocka_unit_test(scarce_memory_keeps_what_it_can),
        cmocka_unit_test(a_plan_that_comes_back_costs_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
