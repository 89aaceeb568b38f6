/* clock_test.c: a wait ends when it is signalled or when the clock that only goes on says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "host/util/clock.h"

#define MS 1000000u
#define GENEROUS (60000ull * MS) // of a machine that does other things

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static bool told;

static void nobody_signals(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        const uint64_t until = clock_ns() + (uint64_t)i * 5 * MS;
        pthread_mutex_lock(&mutex);
        while (clock_wait(&cond, &mutex, until)) assert_true(clock_ns() < until + GENEROUS); // for nothing
        pthread_mutex_unlock(&mutex);
        assert_true(clock_ns() >= until);
    }
}

static void *tell(void *unused)
{
    pthread_mutex_lock(&mutex);
    told = true;
    pthread_cond_signal(&cond);
    pthread_mutex_unlock(&mutex);
    return unused;
}

static void somebody_signals(void **state)
{
    (void)state;
    pthread_t thread;
    const uint64_t until = clock_ns() + GENEROUS;
    bool late = false;
    pthread_mutex_lock(&mutex);
    assert_int_equal(pthread_create(&thread, NULL, tell, NULL), 0);
    while (!told && !late) late = !clock_wait(&cond, &mutex, until);
    pthread_mutex_unlock(&mutex);
    assert_true(told && !late);
    pthread_join(thread, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_signals),
        cmocka_unit_test(somebody_signals),
    };
    return cmocka_run_group_tests_name("clock", tests, NULL, NULL);
}
