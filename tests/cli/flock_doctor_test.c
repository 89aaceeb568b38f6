/* flock_doctor_test.c: verdicts on ducks: each ailment alone, in a flock that is well otherwise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "host/doctor/doctor.h"

enum { DUCKS = 5 };

static struct net_status flock[DUCKS];
static struct doctor doctor;
static enum fp9_format wanted;

static void make(void)
{
    memset(flock, 0, sizeof flock);
    for (uint32_t i = 0; i < DUCKS; i++)
        flock[i] = (struct net_status){.found = true,
                                       .counted = true,
                                       .tested = true,
                                       .sound = true,
                                       .hello = {.link_mbps = 2500,
                                                 .memory_total = 32000000000 + i * 4096,
                                                 .read_bytes_per_second = 17000000000 + i * 100000000,
                                                 .firmware_hash = 5,
                                                 .cpu = "Intel(R) N100",
                                                 .firmware = "duck 1"},
                                       .stats = {.frames_in = 1000000,
                                                 .resend_asked = 10,
                                                 .core_mhz = 2900 - i,
                                                 .loaded_mhz = 2890 + i,
                                                 .turbo_mhz = 2900,
                                                 .power_1_mw = 15000,
                                                 .power_2_mw = 25000,
                                                 .celsius = 60,
                                                 .celsius_most = 105}};
}

/* Duck 3 has this fault and no other, and advice; the others are well. NULL: all are. */
static void expect(enum doctor_verdict verdict, const char *text)
{
    doctor_ducks(&doctor, wanted, flock, DUCKS);
    assert_int_equal(doctor.count, DUCKS);
    for (uint32_t i = 0; i < DUCKS; i++) {
        const struct finding *f = &doctor.finding[i];
        if (f->verdict != (i == 3 ? verdict : DOCTOR_OK)) fail_msg("duck %u: %s", i, f->found);
        if (i != 3 || !text) continue;
        if (!strstr(f->found, text) || strstr(f->found, "; ")) fail_msg("'%s', not '%s'", f->found, text);
        assert_int_not_equal(strlen(f->advice), 0);
    }
    make();
}

static void each_ailment_is_named(void **state)
{
    (void)state;
    struct net_status *d = &flock[3];
    struct wire_stats *s = &d->stats;
    make();
    expect(DOCTOR_OK, NULL);
    d->found = false, expect(DOCTOR_MISSING, "does not answer");
    d->boot.failures = 3, d->boot.starts = 2, expect(DOCTOR_ADVICE, "TFTP failed 3 times in 2 starts");
    d->boot.failures = 1, d->boot.starts = 1, expect(DOCTOR_ADVICE, "TFTP failed 1 time in 1 start through");
    d->sound = false, expect(DOCTOR_MISSING, "computes wrongly");
    d->tested = false, expect(DOCTOR_MISSING, "has not answered the known-answer test");
    d->tested = false, d->hello.holder_session = 7, expect(DOCTOR_OK, NULL);
    d->counted = false, *s = (struct wire_stats){0}, expect(DOCTOR_ADVICE, "has not told its counters");
    d->hello.link_mbps = 1000, expect(DOCTOR_ADVICE, "link 1000 Mb/s where others have 2500");
    d->hello.memory_total = 16000000000, expect(DOCTOR_ADVICE, "16.0 GB of memory where others have 32.0");
    d->hello.read_bytes_per_second = 9000000000,
    expect(DOCTOR_ADVICE, "reads 9.0 GB/s where others read 17.1");
    s->power_1_mw = 6000, expect(DOCTOR_ADVICE, "power limit PL1 6.0 W where others have 15.0");
    s->power_2_mw = 15000, expect(DOCTOR_ADVICE, "power limit PL2 15.0 W where others have 25.0");
    d->hello.firmware_hash = 6, expect(DOCTOR_ADVICE, "most have another");
    s->memory_bad = 3, expect(DOCTOR_MISSING, "3 words of its memory");
    s->care = WIRE_THROTTLED | WIRE_WAS_THROTTLED, expect(DOCTOR_ADVICE, "throttled at 60 of 105 degrees");
    s->care = WIRE_WAS_THROTTLED, expect(DOCTOR_ADVICE, "has been throttled");
    s->care = WIRE_CLOCK_LOST, expect(DOCTOR_ADVICE, "real-time clock has lost its time");
    s->care = WIRE_CLOCKS_DIFFER, expect(DOCTOR_ADVICE, "disagree by more than 1 %");
    s->nic_dropped = 101, expect(DOCTOR_ADVICE, "lost 101 of 1000000 frames");
    s->bad_frame = 101, expect(DOCTOR_ADVICE, "101 of 1000000 frames were none of this protocol");
    s->nic_dropped = s->bad_frame = 100, expect(DOCTOR_OK, NULL);
    s->resend_asked = 1001, expect(DOCTOR_ADVICE, "asked again for 1001 of 1000000 frames");
    s->bad_tag = 1, expect(DOCTOR_ADVICE, "1 frames with a wrong tag");
    s->faults = 2, expect(DOCTOR_ADVICE, "have failed 2 times");
}

/* Duck 3 has this advice, whatever else it says. */
static void expect_advice(const char *advice)
{
    doctor_ducks(&doctor, wanted, flock, DUCKS);
    assert_string_equal(doctor.finding[3].advice, advice);
    make();
}

static void a_clock_is_measured_by_its_own_cpu(void **state)
{
    (void)state;
    struct wire_stats *s = &flock[3].stats;
    const char *low = "clock 2000 MHz where its CPU has 2900 with all cores busy";
    make();
    s->core_mhz = 2000, expect(DOCTOR_ADVICE, low);
    s->loaded_mhz = 2000, expect(DOCTOR_ADVICE, low);
    s->loaded_mhz = 0, s->core_mhz = 2000, expect(DOCTOR_ADVICE, low);
    s->loaded_mhz = 2000, s->core_mhz = 0, expect(DOCTOR_ADVICE, low);
    s->turbo_mhz = 0, s->core_mhz = 2000, expect(DOCTOR_ADVICE, low); // an N100 by its name
    s->turbo_mhz = 0, strcpy(flock[3].hello.cpu, "Intel(R) N95"), s->core_mhz = 2000,
    expect(DOCTOR_ADVICE, "clock 2000 MHz where others have 289");
    s->turbo_mhz = 2200, s->core_mhz = s->loaded_mhz = 2190,
    expect(DOCTOR_ADVICE, "clock 2190 MHz where others have 289");       // another model
    for (uint32_t i = 0; i < DUCKS; i++) flock[i].stats.core_mhz = 2000; // that of a whole flock
    doctor_ducks(&doctor, wanted, flock, DUCKS);
    for (uint32_t i = 0; i < DUCKS; i++) assert_non_null(strstr(doctor.finding[i].found, low));
    make();
    s->core_mhz = 2755, expect(DOCTOR_OK, NULL);
    s->core_mhz = 3400, expect(DOCTOR_OK, NULL); // one core alone
    s->care = WIRE_WAS_POWER_LIMITED, expect(DOCTOR_OK, NULL);
    s->care = WIRE_TURBO_OFF, expect(DOCTOR_ADVICE, "turbo is switched off");
    s->core_mhz = 800, s->care = WIRE_TURBO_OFF, expect_advice("turbo mode in the BIOS");
    s->core_mhz = 800, s->care = WIRE_WAS_THROTTLED, expect_advice("cooling");
    s->core_mhz = 800, s->care = WIRE_POWER_LIMITED, expect_advice("power limits PL1 and PL2 in the BIOS");
    s->core_mhz = 800, expect_advice("turbo, power limits and energy saving in the BIOS; cooling");
}

static void figures_are_shown_well_or_not(void **state)
{
    static const char *const figure[] = {"the known answer is right",
                                         "2500 Mb/s",
                                         "32.0 GB",
                                         "17.3 GB/s",
                                         "2893 MHz",
                                         "its CPU: 2900 with all cores busy",
                                         "PL1 15.0 W",
                                         "PL2 25.0 W (has held it down)",
                                         "60 of 105 degrees",
                                         "started 4 times through PXE"};
    (void)state;
    for (int well = 0; well < 2; well++) {
        make();
        flock[3].stats.care = WIRE_WAS_POWER_LIMITED | (well ? 0 : WIRE_CLOCK_LOST);
        flock[3].stats.core_mhz = 0;
        flock[3].boot.starts = 4;
        doctor_ducks(&doctor, wanted, flock, DUCKS);
        assert_int_equal(doctor.finding[3].verdict, well ? DOCTOR_OK : DOCTOR_ADVICE);
        for (size_t i = 0; i < sizeof figure / sizeof *figure; i++)
            if (!strstr(doctor.finding[3].found, figure[i]))
                fail_msg("no '%s' in '%s'", figure[i], doctor.finding[3].found);
    }
    make();
    flock[3].stats = (struct wire_stats){.frames_in = 10}; // a Linux duck
    flock[3].hello.cpu[0] = 0;
    doctor_ducks(&doctor, wanted, flock, DUCKS);
    assert_null(strstr(doctor.finding[3].found, "MHz"));
    assert_null(strstr(doctor.finding[3].found, "PL1"));
    assert_null(strstr(doctor.finding[3].found, "degrees"));
    flock[3].hello.link_mbps = 0, flock[3].hello.read_bytes_per_second = 0; // a loopback, not measured
    doctor_ducks(&doctor, wanted, flock, DUCKS);
    assert_null(strstr(doctor.finding[3].found, "b/s"));
    assert_null(strstr(doctor.finding[3].found, "B/s"));
    assert_non_null(strstr(doctor.finding[3].found, "in fp9 (32.0 GB, duck 1)"));
    make();
}

static void what_is_just_enough_is_no_ailment(void **state)
{
    (void)state;
    struct net_status *d = &flock[3];
    make();
    d->hello.memory_total = 28900000000, expect(DOCTOR_OK, NULL);
    d->hello.read_bytes_per_second = 13800000000, expect(DOCTOR_OK, NULL);
    d->stats.power_1_mw = 14300, expect(DOCTOR_OK, NULL);
    d->stats.nic_dropped = 100, expect(DOCTOR_OK, NULL);
    d->stats.resend_asked = 1000, expect(DOCTOR_OK, NULL);
    d->stats.frames_in = 9000, d->stats.resend_asked = 300, expect(DOCTOR_OK, NULL);
}

static void what_nobody_knows_is_no_ailment(void **state)
{
    (void)state;
    make();
    for (uint32_t i = 0; i < DUCKS; i++) { // Linux ducks
        flock[i].stats = (struct wire_stats){.frames_in = 10};
        flock[i].hello.link_mbps = 0;
        flock[i].hello.read_bytes_per_second = 0;
    }
    flock[2].hello.read_bytes_per_second = 1000; // and one that measured
    expect(DOCTOR_OK, NULL);
}

/* A duck with firmware of before there was the choice, beside others that can. */
static void a_flock_of_e4m3_needs_ducks_that_keep_it(void **state)
{
    (void)state;
    for (wanted = FP9_FP9; wanted < FP9_FORMATS; wanted++) {
        make();
        for (uint32_t i = 0; i < DUCKS; i++) {
            flock[i].hello.features = i == 3 ? 0 : WIRE_E4M3;
            flock[i].format = i == 3 ? FP9_FP9 : wanted;
        }
        expect(wanted == FP9_E4M3 ? DOCTOR_MISSING : DOCTOR_OK,
               wanted == FP9_E4M3 ? "firmware duck 1 keeps experts as fp9 only" : NULL);
    }
    wanted = FP9_FP9;
}

static void the_answer_is_told_with_its_format(void **state)
{
    (void)state;
    make();
    flock[3].format = FP9_E4M3;
    doctor_ducks(&doctor, wanted, flock, DUCKS);
    assert_non_null(strstr(doctor.finding[2].found, "the known answer is right in fp9"));
    assert_non_null(strstr(doctor.finding[3].found, "the known answer is right in e4m3"));
    flock[3].sound = false;
    expect(DOCTOR_MISSING, "computes wrongly: its known answer in e4m3 is not the right one");
}

static void the_gravest_counts_and_all_are_told_or_cut(void **state)
{
    (void)state;
    make();
    flock[3].stats.care = WIRE_CLOCK_LOST;
    flock[3].stats.memory_bad = 1;
    flock[3].hello.link_mbps = 10;
    doctor_ducks(&doctor, wanted, flock, DUCKS);
    const struct finding *f = &doctor.finding[3];
    assert_int_equal(f->verdict, DOCTOR_MISSING);
    assert_string_equal(f->advice, "replace the module");
    assert_non_null(strstr(f->found, "Mb/s"));
    assert_non_null(strstr(f->found, "lost its time"));
    flock[3].stats.care |= WIRE_CLOCKS_DIFFER | WIRE_THROTTLED;
    flock[3].stats.power_1_mw = flock[3].stats.power_2_mw = flock[3].stats.core_mhz = 1;
    flock[3].stats.faults = flock[3].stats.bad_tag = flock[3].stats.nic_dropped = 1u << 31;
    doctor_ducks(&doctor, wanted, flock, DUCKS);
    assert_int_equal(f->verdict, DOCTOR_MISSING);
    assert_int_equal(strlen(f->found), sizeof f->found - 1);
}

/* A duck that does not answer: how far it has come. */
static void silence_has_a_reason(void **state)
{
    static const struct {
        enum net_boot_stage stage;
        uint32_t other_frames;
        const char *text;
    } reason[] = {{NET_BOOT_SILENT, 0, "has not woken: not a frame from it"},
                  {NET_BOOT_SILENT, 4, "is awake (4 frames), and has not asked for an address"},
                  {NET_BOOT_OTHER, 9, "has booted something else than PXE (it calls itself 'MSFT 5.0')"},
                  {NET_BOOT_LEGACY, 9, "boots as a BIOS does"},
                  {NET_BOOT_ASKED, 9, "asked for an address and taken none"},
                  {NET_BOOT_ADDRESS, 9, "has not fetched the image"},
                  {NET_BOOT_IMAGE, 9, "has fetched the image and not started it"},
                  {NET_BOOT_STARTED, 9, "has started the image and fetched its key"}};
    (void)state;
    make();
    for (size_t i = 0; i < sizeof reason / sizeof *reason; i++) {
        struct net_status *d = &flock[3];
        d->found = false;
        d->serves = d->has_mac = true;
        d->other_frames = reason[i].other_frames;
        d->boot.stage = reason[i].stage;
        strcpy(d->boot.class, "MSFT 5.0");
        expect(DOCTOR_MISSING, reason[i].text);
    }
    flock[3].found = false, flock[3].port_down = true, expect(DOCTOR_MISSING, "its port 0 has no link");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silence_has_a_reason),
        cmocka_unit_test(each_ailment_is_named),
        cmocka_unit_test(a_clock_is_measured_by_its_own_cpu),
        cmocka_unit_test(figures_are_shown_well_or_not),
        cmocka_unit_test(what_nobody_knows_is_no_ailment),
        cmocka_unit_test(what_is_just_enough_is_no_ailment),
        cmocka_unit_test(a_flock_of_e4m3_needs_ducks_that_keep_it),
        cmocka_unit_test(the_answer_is_told_with_its_format),
        cmocka_unit_test(the_gravest_counts_and_all_are_told_or_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
