// plan_test.c: every slice exactly once, in proportion, within memory, and few vectors; over many flocks.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/flock/plan.h"

#define HIDDEN 64u
#define MAX_DUCKS 64u

static struct model_config config_of(uint32_t layers, uint32_t width)
{
    return (struct model_config){.hidden_size = HIDDEN,
                                 .layers = layers,
                                 .mtp_layers = 1,
                                 .first_dense_layers = 1,
                                 .dense_width = 3 * width,
                                 .experts = 4,
                                 .shared_experts = 1,
                                 .expert_width = width};
}

static uint64_t rng = 1;

static double uniform(void) // [0, 1)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (double)(rng >> 11) * 0x1p-53;
}

static void make_ducks(struct plan_duck *d, uint32_t n, bool alike)
{
    for (uint32_t i = 0; i < n; i++) {
        d[i] = (struct plan_duck){.weight = alike ? 1 : 0.2 + 3 * uniform(), .memory_bytes = UINT64_MAX};
    }
}

static uint32_t slices_of(const struct plan *p, uint32_t bank)
{
    return p->bank[bank].width / FP9_LANES;
}

static void check_every_slice_once(const struct plan *p)
{
    uint32_t i = 0;
    for (uint32_t b = 0; b < p->banks; b++) {
        uint32_t at = 0;
        for (; i < p->runs && p->run[i].bank == b; i++) {
            assert_int_equal(p->run[i].first, at);
            assert_true(p->run[i].count > 0 && p->run[i].duck < p->ducks);
            at += p->run[i].count;
        }
        assert_int_equal(at, slices_of(p, b));
    }
    assert_int_equal(i, p->runs);
}

static uint32_t held(const struct plan *p, uint32_t duck, uint32_t bank)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->runs; i++) {
        if (p->run[i].duck == duck && p->run[i].bank == bank) n += p->run[i].count;
    }
    return n;
}

static uint64_t held_bytes(const struct plan *p, uint32_t duck)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->runs; i++) {
        const struct plan_run *r = &p->run[i];
        if (r->duck == duck) n += plan_run_bytes(p->format, p->hidden, &p->bank[r->bank], r->count);
    }
    return n;
}

static uint64_t plan_bytes(const struct plan *p)
{
    uint64_t n = 0;
    for (uint32_t d = 0; d < p->ducks; d++) n += held_bytes(p, d);
    return n;
}

/* Vectors a duck sends: the fewest aligned subtrees of its runs. */
static uint32_t vectors(const struct plan *p, uint32_t duck, uint32_t bank)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->runs; i++) {
        if (p->run[i].duck != duck || p->run[i].bank != bank) continue;
        uint32_t at = p->run[i].first, end = at + p->run[i].count;
        for (; at < end; n++) {
            uint32_t size = 1;
            while (at % (2 * size) == 0 && at + 2 * size <= end) size *= 2;
            at += size;
        }
    }
    return n;
}

static void check_proportions(const struct plan *p, const struct plan_duck *ducks)
{
    double weight = 0;
    for (uint32_t d = 0; d < p->ducks; d++) weight += ducks[d].weight;
    for (uint32_t d = 0; d < p->ducks; d++) {
        for (uint32_t b = 0; b < p->banks; b++) {
            double ideal = ducks[d].weight / weight * slices_of(p, b);
            double off = fabs(held(p, d, b) - ideal);
            assert_true(off <= 1.0 + ideal / 16); // rounded, or both ends moved by 1/32
        }
    }
}

static void all_shapes(void **state)
{
    (void)state;
    static const uint32_t widths[] = {8, 16, 24, 96, 128, 448, 2048, 18432};
    struct plan_duck ducks[MAX_DUCKS];
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        struct model_config c = config_of(5, widths[w]);
        for (uint32_t n = 1; n <= 40; n++) {
            for (int alike = 0; alike < 2; alike++) {
                make_ducks(ducks, n, alike);
                struct plan p;
                struct error err;
                assert_int_equal(plan_make(&p, &c, FP9_FP9, 1, ducks, n, &err), 0);
                assert_int_equal(p.banks, 6);
                check_every_slice_once(&p);
                check_proportions(&p, ducks);
                plan_free(&p);
            }
        }
    }
}

static void banks_follow_the_layers(void **state)
{
    (void)state;
    struct model_config c = config_of(3, 128);
    c.shared_experts = 2;
    struct plan_duck duck = {.weight = 1, .memory_bytes = UINT64_MAX};
    for (int mtp = 0; mtp < 2; mtp++) {
        struct plan p;
        assert_int_equal(plan_make(&p, &c, FP9_FP9, mtp, &duck, 1, NULL), 0);
        assert_int_equal(p.banks, 3 + mtp);
        for (uint32_t b = 0; b < p.banks; b++) {
            assert_int_equal(p.bank[b].routed, b == 0 ? 0 : 4);
            assert_int_equal(p.bank[b].always, b == 0 ? 1 : 2);
            assert_int_equal(p.bank[b].width, b == 0 ? 384 : 128);
        }
        assert_int_equal(p.runs, p.banks); // one duck: one run each
        plan_free(&p);
    }
}

static void equal_powers_of_two_send_one_vector(void **state)
{
    (void)state;
    struct plan_duck ducks[MAX_DUCKS];
    struct model_config c = config_of(4, 2048);
    c.dense_width = 4096;
    for (uint32_t n = 1; n <= 32; n *= 2) {
        make_ducks(ducks, n, true);
        struct plan p;
        assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, ducks, n, NULL), 0);
        for (uint32_t d = 0; d < n; d++) {
            for (uint32_t b = 0; b < p.banks; b++) assert_int_equal(vectors(&p, d, b), 1);
        }
        plan_free(&p);
    }
}

static void other_counts_send_few_vectors(void **state)
{
    (void)state;
    static const uint32_t counts[] = {3, 5, 7};
    struct plan_duck ducks[MAX_DUCKS];
    struct model_config c = config_of(4, 2048);
    for (size_t i = 0; i < 3; i++) {
        make_ducks(ducks, counts[i], true);
        struct plan p;
        assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, ducks, counts[i], NULL), 0);
        uint32_t sum = 0;
        for (uint32_t d = 0; d < p.ducks; d++) {
            assert_in_range(vectors(&p, d, 1), 1, 6);
            sum += vectors(&p, d, 1);
        }
        assert_true(sum <= 4 * p.ducks);
        plan_free(&p);
    }
}

static void more_ducks_than_slices(void **state)
{
    (void)state;
    struct plan_duck ducks[MAX_DUCKS];
    struct model_config c = config_of(21, 24); // 20 banks of 3 slices for 40 ducks
    for (int alike = 0; alike < 2; alike++) {
        make_ducks(ducks, 40, true);
        if (!alike) ducks[7].weight = 2;
        struct plan p;
        assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, ducks, 40, NULL), 0);
        check_every_slice_once(&p);
        for (uint32_t d = 0; d < 40; d++) {
            uint32_t sum = 0;
            for (uint32_t b = 1; b < p.banks; b++) sum += held(&p, d, b);
            assert_in_range(sum, 1, d == 7 && !alike ? 4 : 2);
        }
        plan_free(&p);
    }
}

// A share of 2.4 slices: over many banks nobody gains or loses by rounding.
static void rounding_evens_out(void **state)
{
    (void)state;
    struct plan_duck ducks[MAX_DUCKS];
    struct model_config c = config_of(61, 96); // 60 banks of 12 slices
    make_ducks(ducks, 5, true);
    struct plan p;
    assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, ducks, 5, NULL), 0);
    for (uint32_t d = 0; d < 5; d++) {
        uint32_t sum = 0;
        for (uint32_t b = 1; b < p.banks; b++) sum += held(&p, d, b);
        assert_in_range(sum, 142, 146);
    }
    plan_free(&p);
}

static void memory_bounds_a_share(void **state)
{
    (void)state;
    struct model_config c = config_of(9, 2048);
    struct plan_duck ducks[4];
    make_ducks(ducks, 4, true);
    struct plan p;
    assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, ducks, 4, NULL), 0);
    uint64_t total = plan_bytes(&p);
    plan_free(&p);
    ducks[2].memory_bytes = total / 10;
    assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, ducks, 4, NULL), 0);
    check_every_slice_once(&p);
    assert_true(held_bytes(&p, 2) <= ducks[2].memory_bytes);
    assert_true(held_bytes(&p, 2) > ducks[2].memory_bytes * 8 / 10);
    for (uint32_t d = 0; d < 4; d++) {
        if (d != 2) assert_true(fabs((double)held_bytes(&p, d) / (double)total - 0.3) < 0.02);
    }
    plan_free(&p);
}

static void tight_memory_is_respected(void **state)
{
    (void)state;
    struct plan_duck ducks[MAX_DUCKS];
    for (uint32_t n = 1; n <= 40; n += 3) {
        struct model_config c = config_of(12, n % 2 ? 2048 : 448);
        make_ducks(ducks, n, false);
        struct plan p;
        assert_int_equal(plan_make(&p, &c, FP9_FP9, 1, ducks, n, NULL), 0);
        double total = (double)plan_bytes(&p), weight = 0;
        plan_free(&p);
        for (uint32_t d = 0; d < n; d++) ducks[d].memory_bytes = (uint64_t)(total * (0.3 + uniform()));
        for (uint32_t d = 0; d < n; d++) weight += (double)ducks[d].memory_bytes;
        for (uint32_t d = 0; d < n; d++) { // together 15 % more than needed
            ducks[d].memory_bytes = (uint64_t)((double)ducks[d].memory_bytes * 1.15 * total / weight);
        }
        struct error err = {0};
        if (plan_make(&p, &c, FP9_FP9, 1, ducks, n, &err) != 0) fail_msg("%u ducks: %s", n, err.text);
        check_every_slice_once(&p);
        for (uint32_t d = 0; d < n; d++) assert_true(held_bytes(&p, d) <= ducks[d].memory_bytes);
        plan_free(&p);
    }
}

static void exact_fit(void **state)
{
    (void)state;
    struct plan_duck ducks[4];
    struct model_config c = config_of(4, 2048);
    make_ducks(ducks, 4, true);
    struct plan p;
    assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, ducks, 4, NULL), 0);
    for (uint32_t d = 0; d < 4; d++) ducks[d].memory_bytes = held_bytes(&p, d);
    plan_free(&p);
    assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, ducks, 4, NULL), 0);
    check_every_slice_once(&p);
    plan_free(&p);
    ducks[3].memory_bytes--;
    struct error err = {0};
    assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, ducks, 4, &err), -ENOMEM);
}

static void too_little_memory_says_what_would_fit(void **state)
{
    (void)state;
    struct model_config c = config_of(9, 2048);
    struct plan_duck ducks[3];
    make_ducks(ducks, 3, true);
    struct plan p;
    assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, ducks, 1, NULL), 0);
    uint64_t total = plan_bytes(&p);
    plan_free(&p);
    for (int d = 0; d < 3; d++) ducks[d].memory_bytes = total / 5;
    struct error err = {0};
    assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, ducks, 3, &err), -ENOMEM);
    char wanted[256];
    snprintf(wanted, sizeof wanted,
             "need %.5g MB of duck memory, the 3 ducks have %.5g MB; 6 ducks of %.5g MB would fit",
             (double)total / 1e6, (double)(total / 5 * 3) / 1e6, (double)(total / 5) / 1e6);
    assert_non_null(strstr(err.text, wanted));
    for (int d = 0; d < 2; d++) ducks[d].memory_bytes = 0;
    assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, ducks, 3, &err), -ENOMEM);
    assert_non_null(strstr(err.text, "MB of duck memory, the duck has "));
    for (int d = 0; d < 3; d++) ducks[d].memory_bytes = 0; // lost: no number of such ducks would fit
    assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, ducks, 3, &err), -ENOMEM);
    assert_non_null(strstr(err.text, "MB of duck memory, the 3 ducks have none"));
    assert_null(strstr(err.text, "would fit"));
}

/* Memory that holds the experts as e4m3 does not hold them as fp9. */
static void the_format_counts(void **state)
{
    (void)state;
    struct model_config c = config_of(9, 2048);
    struct plan_duck duck;
    make_ducks(&duck, 1, true);
    struct plan p;
    assert_int_equal(plan_make(&p, &c, FP9_E4M3, 0, &duck, 1, NULL), 0);
    assert_int_equal(p.format, FP9_E4M3);
    duck.memory_bytes = plan_bytes(&p);
    plan_free(&p);
    assert_int_equal(plan_make(&p, &c, FP9_E4M3, 0, &duck, 1, NULL), 0);
    plan_free(&p);
    assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, &duck, 1, NULL), -ENOMEM);
    uint64_t eight = duck.memory_bytes;
    duck.memory_bytes = UINT64_MAX;
    assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, &duck, 1, NULL), 0);
    double ratio = (double)eight / (double)plan_bytes(&p); // 8 / 9, and marks
    assert_true(ratio > 0.888 && ratio < 0.893);
    plan_free(&p);
}

static void bad_ducks_are_refused(void **state)
{
    (void)state;
    static const double bad[] = {0, -1, NAN, INFINITY};
    struct model_config c = config_of(2, 64);
    struct plan p;
    struct error err;
    for (int i = 0; i < 4; i++) {
        struct plan_duck ducks[2] = {{.weight = 1, .memory_bytes = UINT64_MAX},
                                     {.weight = bad[i], .memory_bytes = UINT64_MAX}};
        assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, ducks, 2, &err), -EINVAL);
        assert_non_null(strstr(err.text, "duck 1 has weight"));
    }
    assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, NULL, 0, &err), -EINVAL);
}

static uint32_t owner(const struct plan *p, uint32_t bank, uint32_t slice)
{
    for (uint32_t i = 0; i < p->runs; i++) {
        const struct plan_run *r = &p->run[i];
        if (r->bank == bank && slice >= r->first && slice < r->first + r->count) return r->duck;
    }
    return UINT32_MAX;
}

static void check_only_lost_moved(const struct plan *old, const struct plan *new, uint32_t lost)
{
    check_every_slice_once(new);
    assert_int_equal(old->banks, new->banks);
    for (uint32_t b = 0; b < old->banks; b++) {
        for (uint32_t s = 0; s < slices_of(old, b); s++) {
            uint32_t before = owner(old, b, s), after = owner(new, b, s);
            assert_true(after != lost && (before == lost || before == after));
        }
    }
    // What a duck holds it holds as the same runs: only so do its weights stay.
    for (uint32_t i = 0; i < old->runs; i++) {
        bool found = old->run[i].duck == lost;
        for (uint32_t k = 0; k < new->runs && !found; k++)
            found = memcmp(&old->run[i], &new->run[k], sizeof old->run[i]) == 0;
        assert_true(found);
    }
}

static void losing_ducks_moves_only_theirs(void **state)
{
    (void)state;
    struct plan_duck ducks[MAX_DUCKS];
    static const uint32_t counts[] = {2, 3, 7, 32, 40};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (int alike = 0; alike < 2; alike++) {
            struct model_config c = config_of(3, i % 2 ? 448 : 128);
            make_ducks(ducks, counts[i], alike);
            struct plan p;
            assert_int_equal(plan_make(&p, &c, FP9_FP9, 1, ducks, counts[i], NULL), 0);
            for (uint32_t k = 0; k + 1 < counts[i]; k++) { // one after the other, in a mixed order
                uint32_t lost = (k * 5 + 2) % counts[i];
                if (counts[i] % 5 == 0) lost = k;
                struct plan next;
                struct error err = {0};
                if (plan_without(&next, &p, lost, ducks, &err) != 0) fail_msg("%s", err.text);
                for (uint32_t j = 0; j <= k; j++) {
                    uint32_t gone = counts[i] % 5 == 0 ? j : (j * 5 + 2) % counts[i];
                    for (uint32_t b = 0; b < next.banks; b++) {
                        if (gone == lost) assert_int_equal(held(&next, gone, b), 0);
                    }
                }
                check_only_lost_moved(&p, &next, lost);
                plan_free(&p);
                p = next;
            }
            plan_free(&p);
        }
    }
}

/* As a flock does that has lost several: none of them has memory, from the first that is dealt with on. */
static void several_are_lost_together(void **state)
{
    (void)state;
    struct plan_duck ducks[MAX_DUCKS];
    static const uint32_t counts[] = {3, 4, 7, 32};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct model_config c = config_of(3, 448);
        struct plan p, next;
        make_ducks(ducks, counts[i], i % 2);
        assert_int_equal(plan_make(&p, &c, FP9_FP9, 1, ducks, counts[i], NULL), 0);
        ducks[0].memory_bytes = ducks[2].memory_bytes = 0;
        for (uint32_t lost = 0; lost <= 2; lost += 2) {
            struct error err = {0};
            if (plan_without(&next, &p, lost, ducks, &err) != 0) fail_msg("%s", err.text);
            check_only_lost_moved(&p, &next, lost);
            plan_free(&p);
            p = next;
        }
        assert_int_equal(held_bytes(&p, 0) + held_bytes(&p, 2), 0);
        plan_free(&p);
    }
}

static void several_lost_leave_too_little(void **state)
{
    (void)state;
    struct plan_duck ducks[4];
    struct model_config c = config_of(3, 2048);
    make_ducks(ducks, 4, true);
    struct plan p, next;
    assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, ducks, 4, NULL), 0);
    for (uint32_t d = 0; d < 4; d++) ducks[d].memory_bytes = held_bytes(&p, d) * 3 / 2;
    ducks[1].memory_bytes = ducks[2].memory_bytes = 0; // half of 1.5
    struct error err = {0};
    int rc = plan_without(&next, &p, 1, ducks, &err);
    if (rc == 0) {
        plan_free(&p);
        p = next;
        rc = plan_without(&next, &p, 2, ducks, &err);
    }
    assert_int_equal(rc, -ENOMEM);
    assert_non_null(strstr(err.text, "the 2 ducks have"));
    plan_free(&p);
}

static void survivors_share_alike(void **state)
{
    (void)state;
    struct plan_duck ducks[MAX_DUCKS];
    struct model_config c = config_of(59, 2048); // 58 MoE banks of 256 slices
    make_ducks(ducks, 32, true);
    struct plan p, next;
    assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, ducks, 32, NULL), 0);
    assert_int_equal(plan_without(&next, &p, 9, ducks, NULL), 0);
    for (uint32_t d = 0; d < 32; d++) {
        uint32_t sum = 0;
        for (uint32_t b = 1; b < next.banks; b++) {
            uint32_t n = held(&next, d, b);
            if (d != 9) assert_in_range(n, 8, 9);
            sum += n;
        }
        if (d != 9) assert_in_range(sum, 477, 481); // 58 x 256 / 31 = 479
    }
    plan_free(&p);
    plan_free(&next);
}

static void no_room_for_the_lost(void **state)
{
    (void)state;
    struct plan_duck ducks[3];
    struct model_config c = config_of(3, 2048);
    make_ducks(ducks, 3, true);
    struct plan p, next;
    assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, ducks, 3, NULL), 0);
    for (uint32_t d = 0; d < 3; d++) ducks[d].memory_bytes = held_bytes(&p, d);
    struct error err = {0};
    assert_int_equal(plan_without(&next, &p, 0, ducks, &err), -ENOMEM);
    assert_non_null(strstr(err.text, "without duck 0"));
    ducks[2].memory_bytes = UINT64_MAX; // this one can take it all
    assert_int_equal(plan_without(&next, &p, 0, ducks, &err), 0);
    check_only_lost_moved(&p, &next, 0);
    assert_int_equal(held_bytes(&next, 1), held_bytes(&p, 1));
    plan_free(&next);
    plan_free(&p);
    assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, ducks, 1, NULL), -ENOMEM);
    ducks[0].memory_bytes = UINT64_MAX;
    assert_int_equal(plan_make(&p, &c, FP9_FP9, 0, ducks, 1, NULL), 0);
    assert_int_equal(plan_without(&next, &p, 0, ducks, &err), -ENODEV);
    plan_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_shapes),
        cmocka_unit_test(banks_follow_the_layers),
        cmocka_unit_test(equal_powers_of_two_send_one_vector),
        cmocka_unit_test(other_counts_send_few_vectors),
        cmocka_unit_test(more_ducks_than_slices),
        cmocka_unit_test(rounding_evens_out),
        cmocka_unit_test(memory_bounds_a_share),
        cmocka_unit_test(tight_memory_is_respected),
        cmocka_unit_test(exact_fit),
        cmocka_unit_test(too_little_memory_says_what_would_fit),
        cmocka_unit_test(the_format_counts),
        cmocka_unit_test(bad_ducks_are_refused),
        cmocka_unit_test(losing_ducks_moves_only_theirs),
        cmocka_unit_test(several_are_lost_together),
        cmocka_unit_test(several_lost_leave_too_little),
        cmocka_unit_test(survivors_share_alike),
        cmocka_unit_test(no_room_for_the_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
