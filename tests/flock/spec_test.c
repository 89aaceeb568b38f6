// spec_test.c: what --flock understands and how it refuses the rest.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/flock/spec.h"
#include "host/flock/transport.h"
#include "host/util/cpus.h"
#include "host/util/numa.h"

static void local_forms(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t ducks;
    } good[] = {{"local", 0}, {"local:1", 1}, {"local:3", 3}, {"local:256", 256}}; // 0: one for each node
    static struct numa numa;
    static uint8_t allowed[NUMA_MAX_CPUS];
    cpus_allowed(allowed, sizeof allowed);
    assert_int_equal(numa_read(&numa, NUMA_DIR, allowed, NULL), 0);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct flock_spec s;
        assert_int_equal(flock_spec_read(&s, good[i].text, NULL), 0);
        assert_ptr_equal(s.transport, &transport_local);
        assert_int_equal(s.ducks, good[i].ducks ? good[i].ducks : numa.nodes);
        assert_string_equal(s.duck[0].name, "local-0");
        assert_true(s.duck[0].plan.weight == 1 && s.duck[0].plan.memory_bytes == UINT64_MAX);
        flock_spec_free(&s);
    }
}

static void bad_words(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
        int rc;
    } bad[] = {
        {"local:0", "flock 'local:0': the number of local ducks must be 1 .. 256", -EINVAL},
        {"local:x", "flock 'local:x': the number of local ducks must be 1 .. 256", -EINVAL},
        {"local:", "flock 'local:': the number of local ducks must be 1 .. 256", -EINVAL},
        {"local:-1", "flock 'local:-1': the number of local ducks must be 1 .. 256", -EINVAL},
        {"local: 1", "flock 'local: 1': the number of local ducks must be 1 .. 256", -EINVAL},
        {"local:3x", "flock 'local:3x': the number of local ducks must be 1 .. 256", -EINVAL},
        {"local:257", "flock 'local:257': the number of local ducks must be 1 .. 256", -EINVAL},
        {"local:99999999999999999999",
         "flock 'local:99999999999999999999': the number of local ducks must be 1 .. 256", -EINVAL},
        {"no-such-file.json",
         "flock 'no-such-file.json' is neither local, local:N nor a file: No such file or directory",
         -ENOENT},
        {"", "flock '' is neither local, local:N nor a file: No such file or directory", -ENOENT},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct flock_spec s;
        struct error err = {0};
        assert_int_equal(flock_spec_read(&s, bad[i].text, &err), bad[i].rc);
        assert_string_equal(err.text, bad[i].message);
        assert_null(s.duck);
    }
}

/* Before a file is opened or the machine is looked at. */
static void the_text_alone(void **state)
{
    (void)state;
    static const char *const good[] = {"local", "local:1", "local:256", "no-such-file.json", "localhost", ""};
    static const char *const bad[] = {"local:", "local:0", "local:257", "local:x"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(flock_spec_check_text(good[i], NULL), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct error err = {0};
        assert_int_equal(flock_spec_check_text(bad[i], &err), -EINVAL);
        assert_non_null(strstr(err.text, bad[i]));
    }
}

static int parse(struct flock_spec *s, const char *json, struct error *err)
{
    return flock_spec_parse(s, json, strlen(json), "f.json", err);
}

static void unlike_ducks(void **state)
{
    (void)state;
    struct flock_spec s;
    assert_int_equal(parse(&s,
                           "{\"transport\": \"local\", \"ducks\": [{\"name\": \"big\", \"weight\": 2.5},"
                           " {\"memory_gb\": 0.5}, {}]}",
                           NULL),
                     0);
    assert_int_equal(s.ducks, 3);
    assert_string_equal(s.duck[0].name, "big");
    assert_string_equal(s.duck[1].name, "local-1");
    assert_true(s.duck[0].plan.weight == 2.5 && s.duck[1].plan.weight == 1);
    assert_true(s.duck[0].plan.memory_bytes == UINT64_MAX && s.duck[1].plan.memory_bytes == 500000000);
    flock_spec_free(&s);
}

static void bad_json(void **state)
{
    (void)state;
    static const struct {
        const char *json, *message;
    } bad[] = {
        {"[]", "f.json: not a JSON object"},
        {"{\"transport\": \"local\", \"duck\": []}", "f.json: unknown key 'duck'"},
        {"{\"ducks\": [{}]}", "f.json: transport is "},
        {"{\"transport\": \"pigeon\", \"ducks\": [{}]}",
         "f.json: unknown transport \"pigeon\"; this duckd has: local"},
        {"{\"transport\": \"local\"}", "f.json: ducks must be a list of 1 .. 256 ducks, it has 0"},
        {"{\"transport\": \"local\", \"ducks\": []}",
         "f.json: ducks must be a list of 1 .. 256 ducks, it has 0"},
        {"{\"transport\": \"local\", \"ducks\": [{}, 3]}", "f.json: duck 1 is 3, it must be an object"},
        {"{\"transport\": \"local\", \"ducks\": [{\"wieght\": 1}]}", "f.json: duck 0: unknown key 'wieght'"},
        {"{\"transport\": \"local\", \"ducks\": [{\"weight\": 0}]}",
         "f.json: duck 0: weight is 0, it must be a positive number"},
        {"{\"transport\": \"local\", \"ducks\": [{\"memory_gb\": \"8\"}]}",
         "f.json: duck 0: memory_gb is \"8\", it must be a positive number"},
        {"{\"transport\": \"local\", \"ducks\": [{\"name\": \"\"}]}",
         "f.json: duck 0: name is \"\", it must be a text of 1 .. 47 bytes"},
        {"{\"transport\": \"local\", \"ducks\": [{\"name\": \"a\\nb\"}]}",
         "f.json: duck 0: name is \"a?b\", it has a control character"},
        {"{\"transport\": \"local\", \"ducks\": [{\"name\": \"a\"}, {\"name\": \"a\"}]}",
         "f.json: duck 1 has the name of duck 0, 'a'"},
        {"{\"transport\": ", "f.json"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct flock_spec s;
        struct error err = {0};
        assert_true(parse(&s, bad[i].json, &err) < 0);
        if (strncmp(err.text, bad[i].message, strlen(bad[i].message)) != 0) {
            fail_msg("got '%s', want '%s'", err.text, bad[i].message);
        }
        assert_null(s.duck);
    }
}

static void from_a_file(void **state)
{
    (void)state;
    char path[] = "/tmp/duckd-spec-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    static const char json[] = "{\"transport\": \"local\", \"ducks\": [{}, {}]}";
    assert_int_equal(write(fd, json, sizeof json - 1), sizeof json - 1);
    close(fd);
    struct flock_spec s;
    assert_int_equal(flock_spec_read(&s, path, NULL), 0);
    assert_int_equal(s.ducks, 2);
    flock_spec_free(&s);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(local_forms),  cmocka_unit_test(bad_words), cmocka_unit_test(the_text_alone),
        cmocka_unit_test(unlike_ducks), cmocka_unit_test(bad_json),  cmocka_unit_test(from_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
