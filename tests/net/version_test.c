/* version_test.c: a duck that speaks another version of the protocol: who looks for ducks says so and ends, a
 * session that runs does not; and one that cannot run the program it is sent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "duck/program.h"
#include "host/flock/net/internal.h"
#include "tests/net/world.h"

#define MS 1000000ull

static const struct duck_bank_shape banks[] = {{4, 0, 64}};
static const struct duck_run whole[] = {{0, 0, 8}};
static const struct duck_shape shape = {.hidden = 512, .banks = 1, .bank = banks, .runs = 1, .run = whole};

/* The flock's key is right, the frame was made by a later version. */
static void hello_of_another(struct world *w)
{
    struct net_flock *f = &w->host[0].flock;
    const struct net_peer from = {.address = 0x0a150070, .port = WIRE_DUCK_PORT};
    uint8_t frame[WIRE_HEADER + sizeof(struct wire_hello)] = {0};
    struct wire_header h = {.type = WIRE_HELLO, .length = sizeof(struct wire_hello)};
    struct siphash s;
    wire_seal(frame, h, &f->flock_key);
    memcpy(&h, frame, sizeof h);
    h.version = WIRE_VERSION + 1;
    h.tag = 0;
    memcpy(frame, &h, sizeof h);
    siphash_begin(&s, &f->flock_key);
    siphash_words(&s, frame, WIRE_HEADER / 8);
    h.tag = siphash_end(&s, frame + WIRE_HEADER, sizeof(struct wire_hello));
    memcpy(frame, &h, sizeof h);
    net_port_input(&f->port[0], &from, frame, sizeof frame, w->time);
}

static void expect_refusal(struct net_flock *f)
{
    struct error err = {""};
    assert_int_equal(net_failure(f, &err), -EPROTO);
    assert_non_null(strstr(err.text, "the duck at 10.21.0.112 speaks version 2 of the protocol"));
}

static void whoever_looks_for_ducks_says_so(void **state)
{
    (void)state;
    static struct world w;
    world_make(&w, &shape, 1, 2, 1, 7);
    world_host_start(&w, 0, 1, 4, WIRE_F32);
    world_run(&w, NULL, 0, 100 * MS);
    hello_of_another(&w);
    expect_refusal(&w.host[0].flock);
    world_free(&w);
}

/* It looks for a duck that was lost, beside the session without it: only the look fails. */
static void a_session_goes_on(void **state)
{
    (void)state;
    static struct world w;
    world_make(&w, &shape, 1, 2, 1, 8);
    world_host_start(&w, 0, 1, 4, WIRE_F32);
    assert_true(world_open(&w, 0));
    struct net_flock *f = &w.host[0].flock, guest;
    hello_of_another(&w);
    assert_int_equal(net_failure(f, NULL), 0);
    struct net_config config = w.host[0].config;
    config.ducks = 1;
    assert_int_equal(net_flock_init(&guest, &config, NULL), 0);
    net_guest_attach(&guest, f, 0);
    world_run(&w, NULL, 0, 100 * MS);
    hello_of_another(&w);
    assert_int_equal(net_failure(f, NULL), 0);
    expect_refusal(&guest);
    atomic_store(&f->port[0].guest, NULL);
    net_flock_free(&guest);
    world_free(&w);
}

/* Its loader says what is wrong with the file; a new program for old firmware is the likely case. */
static void a_program_that_cannot_run_is_explained(void **state)
{
    (void)state;
    static const struct {
        uint64_t problem;
        const char *says;
    } cases[] = {{PROGRAM_OTHER_ABI, "it was built for other firmware, take both from the same build"},
                 {PROGRAM_NOT_ELF, "it is no ELF file of x86-64"},
                 {PROGRAM_NO_MEMORY, "it is too large"},
                 {PROGRAM_OK, "the duck does not say why"},
                 {99, "the duck does not say why"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static struct world w;
        world_make(&w, &shape, 1, 1, 1, 9);
        world_host_start(&w, 0, 1, 4, WIRE_F32);
        struct net_flock *f = &w.host[0].flock;
        struct net_duck *d = &f->duck[0];
        const struct net_put program = {.kind = WIRE_PROGRAM, .bytes = calloc(1, 64), .total = 64, .hash = 1};
        struct error err = {""};
        char says[256];
        uint64_t deadline = UINT64_MAX;
        strcpy(f->config->program, "/x/fp9_kernels.elf");
        strcpy(d->hello.firmware, "duck 0.1");
        assert_int_equal(net__put(d, &program), 0);
        net__put_work(d, w.time, &deadline);
        net__put_ack(d,
                     &(struct wire_put_ack){.kind = WIRE_PROGRAM,
                                            .status = WIRE_PUT_REFUSED,
                                            .reason = WIRE_PUT_BAD_PROGRAM,
                                            .value = cases[i].problem},
                     w.time);
        assert_int_equal(net_failure(f, &err), -EPROTO);
        snprintf(says, sizeof says, " (firmware duck 0.1) cannot run /x/fp9_kernels.elf: %s", cases[i].says);
        if (!strstr(err.text, says)) fail_msg("'%s', not '%s'", err.text, says);
        world_free(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whoever_looks_for_ducks_says_so),
        cmocka_unit_test(a_session_goes_on),
        cmocka_unit_test(a_program_that_cannot_run_is_explained),
    };
    return cmocka_run_group_tests_name("net version", tests, NULL, NULL);
}
