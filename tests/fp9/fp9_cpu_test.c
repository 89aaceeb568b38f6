/* fp9_cpu_test.c: which kernels are chosen, by what CPUs say of themselves, not only by the one that runs
 * this. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fp9/fp9_cpu.h"

enum { AMD = 0x68747541, INTEL = 0x756e6547 }; // "Auth", "Genu"

static const struct fp9_cpu zen3 = {AMD, 0x00a20f10, 0x7ef8320b, 0x219c97a9, 0x207},
                            zen4 = {AMD, 0x00a10f11, 0xfffa3203, 0xf1bf07ab, 0xe7},
                            zen5 = {AMD, 0x00b40f40, 0xfffa3203, 0xf1bf97a9, 0xe7},
                            xeon = {INTEL, 0x000806f8, 0xfffa3203, 0xf1bf07ab, 0xe7},
                            /* Intel's families are numbers of their own. */
    intel_19h = {INTEL, 0x00a10f11, 0xfffa3203, 0xf1bf07ab, 0xe7};

static void the_widest_that_is_no_loss(void **state)
{
    (void)state;
    assert_ptr_equal(fp9_select_of(&zen3, NULL), &fp9_avx2);
    assert_ptr_equal(fp9_select_of(&zen4, NULL), &fp9_avx2_l2);
    assert_ptr_equal(fp9_select_of(&zen5, NULL), &fp9_avx512);
    assert_ptr_equal(fp9_select_of(&xeon, NULL), &fp9_avx512);
    assert_ptr_equal(fp9_select_of(&intel_19h, NULL), &fp9_avx512);
}

static void whatever_the_cpu_has_can_be_forced(void **state)
{
    (void)state;
    assert_ptr_equal(fp9_select_of(&zen4, "avx512"), &fp9_avx512);
    assert_ptr_equal(fp9_select_of(&zen4, "avx2"), &fp9_avx2);
    assert_ptr_equal(fp9_select_of(&xeon, "avx2"), &fp9_avx2);
    assert_ptr_equal(fp9_select_of(&xeon, "avx2-l2"), &fp9_avx2_l2);
    assert_ptr_equal(fp9_select_of(&zen3, "avx2-l2"), &fp9_avx2_l2);
    assert_ptr_equal(fp9_select_of(&xeon, "scalar"), &fp9_scalar);
    assert_null(fp9_select_of(&zen3, "avx512"));
    assert_null(fp9_select_of(&xeon, "avx"));
    assert_null(fp9_select_of(&xeon, ""));
}

static void what_the_operating_system_does_not_save_is_not_there(void **state)
{
    (void)state;
    struct fp9_cpu cpu = xeon;
    cpu.xcr0 = 0x7;
    assert_ptr_equal(fp9_select_of(&cpu, NULL), &fp9_avx2);
    assert_null(fp9_select_of(&cpu, "avx512"));
    cpu.xcr0 = 0x3;
    assert_null(fp9_select_of(&cpu, NULL));
    assert_string_equal(fp9_cpu_missing_of(&cpu), "AVX state in XCR0 (switched off by the operating system)");
    cpu.leaf1_ecx &= ~(1u << 27);
    assert_string_equal(fp9_cpu_missing_of(&cpu),
                        "OSXSAVE (saving of AVX registers by the operating system)");
}

static void what_is_missing_has_a_name(void **state)
{
    (void)state;
    static const struct {
        uint32_t leaf1_ecx, leaf7_ebx;
        const char *name;
    } without[] = {{1u << 28, 0, "AVX"}, {1u << 12, 0, "FMA"}, {1u << 29, 0, "F16C"}, {0, 1u << 5, "AVX2"}};
    assert_null(fp9_cpu_missing_of(&zen3));
    for (size_t i = 0; i < sizeof without / sizeof without[0]; i++) {
        struct fp9_cpu cpu = xeon;
        cpu.leaf1_ecx &= ~without[i].leaf1_ecx;
        cpu.leaf7_ebx &= ~without[i].leaf7_ebx;
        assert_string_equal(fp9_cpu_missing_of(&cpu), without[i].name);
        assert_null(fp9_select_of(&cpu, "scalar"));
    }
    static const uint32_t avx512[] = {1u << 16, 1u << 17}; // F, DQ
    for (size_t i = 0; i < 2; i++) {
        struct fp9_cpu cpu = xeon;
        cpu.leaf7_ebx &= ~avx512[i];
        assert_ptr_equal(fp9_select_of(&cpu, NULL), &fp9_avx2);
    }
}

static void this_cpu(void **state)
{
    (void)state;
    assert_null(fp9_cpu_missing());
    assert_ptr_equal(fp9_select("scalar"), &fp9_scalar);
    assert_ptr_equal(fp9_select("avx2"), &fp9_avx2);
    const struct fp9_kernels *chosen = fp9_select(NULL);
    assert_ptr_equal(fp9_select(chosen->name), chosen);
    assert_true(chosen == &fp9_avx2 || chosen == &fp9_avx2_l2 || chosen == &fp9_avx512);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_widest_that_is_no_loss),
        cmocka_unit_test(whatever_the_cpu_has_can_be_forced),
        cmocka_unit_test(what_the_operating_system_does_not_save_is_not_there),
        cmocka_unit_test(what_is_missing_has_a_name),
        cmocka_unit_test(this_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
