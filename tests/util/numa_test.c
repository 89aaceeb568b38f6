/* numa_test.c: made-up machines, tasks taken by threads, and pages of this machine's nodes. */
#include <errno.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "host/util/numa.h"

static void put(const char *dir, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void put_node(const char *dir, unsigned id, const char *cpus)
{
    char path[256];
    snprintf(path, sizeof path, "%s/node%u", dir, id);
    assert_int_equal(mkdir(path, 0700), 0);
    put(path, "cpulist", cpus);
}

static void remove_machine(const char *dir)
{
    char command[300];
    snprintf(command, sizeof command, "rm -r '%s'", dir);
    assert_int_equal(system(command), 0);
}

/* Nodes 0 and 2 with CPUs, 1 with memory only, 3 with CPUs that others have. */
static void topology(void **state)
{
    (void)state;
    char dir[] = "/tmp/numa-XXXXXX";
    struct error err = {{0}};
    static struct numa n;
    static uint8_t allowed[NUMA_MAX_CPUS];
    assert_non_null(mkdtemp(dir));
    put(dir, "online", "0-3\n");
    put_node(dir, 0, "0-1,8-9\n");
    put_node(dir, 1, "\n");
    put_node(dir, 2, "2-3\n");
    put_node(dir, 3, "4-7\n");
    for (int cpu = 0; cpu < 4; cpu++) allowed[cpu] = 1;
    assert_int_equal(numa_read(&n, dir, allowed, &err), 0);
    assert_int_equal(n.nodes, 2);
    assert_int_equal(n.id[0], 0);
    assert_int_equal(n.id[1], 2);
    assert_int_equal(n.near_of[1], 0);
    assert_int_equal(n.near_of[9], 0);
    assert_int_equal(n.near_of[2], 1);
    assert_int_equal(numa_read(&n, dir, NULL, &err), 0);
    assert_int_equal(n.nodes, 3);
    assert_int_equal(n.near_of[7], 2);
    put(dir, "online", "0,x\n");
    assert_int_equal(numa_read(&n, dir, NULL, &err), -EINVAL);
    assert_non_null(strstr(err.text, "/online is '0,x"));
    put(dir, "online", "0-3");
    put(dir, "node2/cpulist", "3-2");
    assert_int_equal(numa_read(&n, dir, NULL, &err), -EINVAL);
    assert_non_null(strstr(err.text, "/node2/cpulist is '3-2"));
    put(dir, "node2/cpulist", "4096");
    assert_int_equal(numa_read(&n, dir, NULL, &err), -EINVAL);
    remove_machine(dir);
    assert_int_equal(numa_read(&n, dir, NULL, &err), 0); // a kernel without nodes
    assert_int_equal(n.nodes, 1);
    assert_int_equal(numa_here(&n), 0);
}

static void shares_over_nodes(void **state)
{
    (void)state;
    static struct numa n = {.nodes = 2};
    static const unsigned of_five[] = {0, 0, 0, 1, 1};
    for (unsigned i = 0; i < 5; i++) assert_int_equal(numa_node_of(&n, i, 5), of_five[i]);
    assert_int_equal(numa_node_of(&n, 1, 2), 1);
}

static void near_tasks_first(void **state)
{
    (void)state;
    struct numa_share s[3] = {{0, 2, 0}, {0, 0, 1}, {0, 3, 1}};
    static const unsigned share[] = {2, 2, 2, 0, 0}, task[] = {0, 1, 2, 0, 1};
    unsigned got;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(numa_take(s, 3, 1, &got), task[i]);
        assert_int_equal(got, share[i]);
    }
    numa_take(s, 3, 1, &got);
    assert_int_equal(got, 3);
}

enum { THREADS = 4, SHARES = 3, TASKS = 5000 };
static struct numa_share contended[SHARES];
static _Atomic uint32_t taken[SHARES][TASKS];

static void *taker(void *arg)
{
    unsigned share;
    for (;;) {
        uint32_t task = numa_take(contended, SHARES, *(unsigned *)arg, &share);
        if (share == SHARES) return NULL;
        atomic_fetch_add(&taken[share][task], 1);
    }
}

static void each_task_once(void **state)
{
    (void)state;
    pthread_t thread[THREADS];
    unsigned node[THREADS] = {0, 1, 0, 1};
    for (unsigned i = 0; i < SHARES; i++) {
        contended[i].tasks = TASKS - i;
        contended[i].node = i % 2;
    }
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&thread[i], NULL, taker, &node[i]), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    for (unsigned i = 0; i < SHARES; i++)
        for (unsigned t = 0; t < TASKS; t++) assert_int_equal(taken[i][t], t < TASKS - i);
}

/* Where the kernel says a page is, once it was touched. */
static int node_of_page(void *page)
{
    int status = -1;
    *(volatile char *)page = 1;
    long rc = syscall(SYS_move_pages, 0, 1ul, &page, NULL, &status, 0);
    return rc == 0 ? status : -errno;
}

static void pages_on_their_node(void **state)
{
    (void)state;
    enum { PAGES = 16 };
    static struct numa n;
    struct error err = {{0}};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    assert_int_equal(numa_read(&n, NUMA_DIR, NULL, &err), 0);
    if (n.nodes == 1) skip();
    for (unsigned node = 0; node < n.nodes; node++) {
        char *p = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(p != MAP_FAILED);
        int rc = numa_bind(&n, node, p, PAGES * page);
        if (rc == -EPERM || rc == -ENOSYS) skip(); // a sandbox that forbids it
        assert_int_equal(rc, 0);
        for (size_t i = 0; i < PAGES; i++) assert_int_equal(node_of_page(p + i * page), n.id[node]);
        munmap(p, PAGES * page);
    }
}

/* With one node too the calls must be ones that the kernel takes. */
static void policies_are_accepted(void **state)
{
    (void)state;
    static struct numa n;
    struct error err = {{0}};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    assert_int_equal(numa_read(&n, NUMA_DIR, NULL, &err), 0);
    char *p = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    int rc = numa_bind(&n, n.nodes - 1, p, page);
    if (rc == -EPERM || rc == -ENOSYS) skip();
    assert_int_equal(rc, 0);
    assert_int_equal(numa_spread(&n, p + page, page), 0);
    p[0] = p[page] = 1;
    munmap(p, 2 * page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(topology),
        cmocka_unit_test(shares_over_nodes),
        cmocka_unit_test(near_tasks_first),
        cmocka_unit_test(each_task_once),
        cmocka_unit_test(pages_on_their_node),
        cmocka_unit_test(policies_are_accepted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
