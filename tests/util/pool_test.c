// pool_test.c: every task runs exactly once, on whatever number of threads, awake or asleep.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/util/clock.h"
#include "host/util/cpus.h"
#include "host/util/pool.h"

#define MAX_TASKS 5000u

struct job {
    uint8_t runs[MAX_TASKS];
    uint64_t sum[64]; // per worker, not atomic: TSan finds two threads with one number
    unsigned threads;
    _Atomic bool bad_worker;
};

static void count_task(void *arg, size_t task, unsigned worker)
{
    struct job *j = arg;
    j->runs[task]++;
    if (worker >= j->threads) {
        atomic_store(&j->bad_worker, true);
        return;
    }
    j->sum[worker] += task;
}

static void check_job(struct job *j, size_t tasks)
{
    uint64_t sum = 0;
    for (unsigned w = 0; w < 64; w++) sum += j->sum[w];
    for (size_t i = 0; i < MAX_TASKS; i++) assert_int_equal(j->runs[i], i < tasks);
    assert_int_equal(sum, tasks * (tasks - (tasks > 0)) / 2);
    assert_false(atomic_load(&j->bad_worker));
    memset(j->runs, 0, sizeof j->runs);
    memset(j->sum, 0, sizeof j->sum);
}

static void every_task_runs_once(void **state)
{
    (void)state;
    static const unsigned threads[] = {1, 2, 3, 8};
    static const size_t tasks[] = {0, 1, 2, 3, 7, 64, 5000};
    struct job *j = calloc(1, sizeof *j);
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        struct pool *p;
        assert_int_equal(pool_open(&p, threads[t], NULL), 0);
        assert_int_equal(pool_threads(p), threads[t]);
        j->threads = threads[t];
        for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) {
            pool_run(p, count_task, j, tasks[i]);
            check_job(j, tasks[i]);
        }
        pool_close(p);
    }
    free(j);
}

// Back to back jobs of few tasks: a late worker must never run a task of the next job twice or with the
// arguments of the last one. Now and then long enough a pause for workers to fall asleep.
static void jobs_back_to_back(void **state)
{
    (void)state;
    struct pool *p;
    assert_int_equal(pool_open(&p, 4, NULL), 0);
    struct job *jobs = calloc(3, sizeof *jobs);
    for (unsigned i = 0; i < 3; i++) jobs[i].threads = 4;
    for (unsigned round = 0; round < 600; round++) {
        struct job *j = &jobs[round % 3];
        size_t tasks = round % 11;
        pool_run(p, count_task, j, tasks);
        check_job(j, tasks);
        if (round % 100 == 99) usleep(1000);
    }
    free(jobs);
    pool_close(p);
}

static void record_thread(void *arg, size_t task, unsigned worker)
{
    pthread_t *threads = arg;
    threads[task] = pthread_self();
    assert_int_equal(worker, 0);
}

static void one_thread_runs_inline_in_order(void **state)
{
    (void)state;
    struct pool *p;
    assert_int_equal(pool_open(&p, 1, NULL), 0);
    pthread_t threads[4];
    pool_run(p, record_thread, threads, 4);
    for (int i = 0; i < 4; i++) assert_true(pthread_equal(threads[i], pthread_self()));
    pool_close(p);
}

static void slow_task(void *arg, size_t task, unsigned worker)
{
    (void)worker;
    usleep(task == 0 ? 1000 : 3000); // the caller, done first, has to sleep for the other
    atomic_fetch_add((_Atomic int *)arg, 1);
}

static void caller_sleeps_for_the_last_task(void **state)
{
    (void)state;
    struct pool *p;
    assert_int_equal(pool_open(&p, 3, NULL), 0);
    for (int i = 0; i < 5; i++) {
        _Atomic int done = 0;
        pool_run(p, slow_task, &done, 3);
        assert_int_equal(atomic_load(&done), 3);
    }
    pool_close(p);
}

struct recorded {
    char name[16];
    _Atomic int done;
};

static void record_name(void *arg, size_t task, unsigned worker)
{
    (void)task;
    struct recorded *r = arg;
    if (worker > 0) {
        pthread_getname_np(pthread_self(), r->name, sizeof r->name);
        atomic_store(&r->done, 1);
    }
    for (int i = 0; i < 60000 && !atomic_load(&r->done); i++)
        usleep(1000); // leaves the other task to the worker
}

static void workers_have_names(void **state)
{
    (void)state;
    struct pool *p;
    assert_int_equal(pool_open(&p, 2, NULL), 0);
    struct recorded r = {0};
    pool_run(p, record_name, &r, 2);
    assert_string_equal(r.name, "duckd-pool-1");
    pool_close(p);
}

static void default_is_one_per_cpu(void **state)
{
    (void)state;
    struct pool *p;
    assert_int_equal(pool_open(&p, 0, NULL), 0);
    assert_int_equal(pool_threads(p), cpus_available());
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    assert_in_range(cpus_available(), 1, (unsigned)CPU_COUNT(&set));
    pool_close(p);
}

static void absurd_count_is_refused(void **state)
{
    (void)state;
    struct pool *p;
    struct error err = {0};
    assert_int_equal(pool_open(&p, 5000, &err), -EINVAL);
    assert_string_equal(err.text, "5000 threads asked for, at most 1024 are possible");
    assert_null(p);
}

static void meet(void *arg, size_t task, unsigned worker)
{
    (void)task;
    (void)worker;
    _Atomic unsigned *arrived = arg;
    atomic_fetch_add(arrived, 1);
    for (unsigned looks = 1; atomic_load(arrived) < 2; looks++) {
        if (looks % 1000 == 0) sched_yield();
    }
}

// Not a test of speed: prints what a job costs whose two tasks need two threads, so that a change that ruins
// it is seen in the log. That both tasks meet is the test.
static void two_tasks_run_at_once(void **state)
{
    (void)state;
    struct pool *p;
    assert_int_equal(pool_open(&p, 2, NULL), 0);
    uint64_t best = UINT64_MAX;
    for (int r = 0; r < 100; r++) {
        uint64_t start = clock_ns();
        for (int i = 0; i < 10; i++) {
            _Atomic unsigned arrived = 0;
            pool_run(p, meet, &arrived, 2);
            assert_int_equal(atomic_load(&arrived), 2);
        }
        uint64_t t = (clock_ns() - start) / 10;
        if (t < best) best = t;
    }
    print_message("pool_run of 2 empty tasks that meet, on 2 threads: %llu ns\n", (unsigned long long)best);
    pool_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once),
        cmocka_unit_test(jobs_back_to_back),
        cmocka_unit_test(one_thread_runs_inline_in_order),
        cmocka_unit_test(caller_sleeps_for_the_last_task),
        cmocka_unit_test(workers_have_names),
        cmocka_unit_test(default_is_one_per_cpu),
        cmocka_unit_test(absurd_count_is_refused),
        cmocka_unit_test(two_tasks_run_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
