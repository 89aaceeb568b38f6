/* open_test.c: what engine_open() makes of --flock: whether waiting for a step is working on it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/engine/engine_internal.h"

static int open_with(struct engine **e, const char *model, const char *flock, struct error *err)
{
    const struct engine_options o = {
        .model_dir = model, .backend = "cpu", .flock = flock, .threads = 1, .lanes = 1};
    return engine_open(e, &o, err);
}

/* A file may describe what "local:N" does; the engine must not tell them apart. */
static void ducks_of_this_process_are_local_however_they_are_named(void **state)
{
    (void)state;
    char path[] = "/tmp/duckd-local-XXXXXX";
    static const char json[] = "{\"transport\": \"local\", \"ducks\": [{\"weight\": 2}, {}]}";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, json, sizeof json - 1), sizeof json - 1);
    close(fd);
    const char *const flocks[] = {"local", "local:2", path};
    for (size_t i = 0; i < sizeof flocks / sizeof *flocks; i++) {
        struct engine *e;
        struct error err = {""};
        if (open_with(&e, "tests/goldens/v3-tiny", flocks[i], &err)) fail_msg("%s", err.text);
        assert_true(lanes_flock(e->lanes)->works_in_wait);
        assert_int_equal(e->set.verify, MTP_ONE_JOB);
        if (i) assert_int_equal(flock_ducks(engine_flock(e)), 2);
        engine_close(e);
    }
    unlink(path);
}

static void a_wrong_flock_is_told_before_the_model_is_looked_for(void **state)
{
    (void)state;
    struct engine *e;
    struct error err = {""};
    assert_int_equal(open_with(&e, "/no/such/model", "/no/such/flock.json", &err), -ENOENT);
    assert_non_null(strstr(err.text, "flock '/no/such/flock.json'"));
    assert_int_equal(open_with(&e, "/no/such/model", "local:1", &err), -ENOENT);
    assert_non_null(strstr(err.text, "/no/such/model"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ducks_of_this_process_are_local_however_they_are_named),
        cmocka_unit_test(a_wrong_flock_is_told_before_the_model_is_looked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
