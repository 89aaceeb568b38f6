/* eal.c: EAL's command line from the flock's configuration, and which CPU each lcore runs on. */
#include <errno.h>
#include <glob.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/flock/dpdk/dpdk.h"

static void add(struct eal_arguments *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct eal_arguments *a, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(a->text[a->count], sizeof a->text[a->count], format, ap);
    va_end(ap);
    a->argument[a->count] = a->text[a->count];
    a->count++;
}

/* The CPU of an lcore: its own number if this process may use it, else the others in turn. */
static unsigned cpu_of(unsigned lcore, const cpu_set_t *allowed)
{
    unsigned count = (unsigned)CPU_COUNT(allowed), wanted = lcore % count;
    if (lcore < CPU_SETSIZE && CPU_ISSET(lcore, allowed)) return lcore;
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, allowed) && wanted-- == 0) return cpu;
    return 0;
}

static int add_lcores(struct eal_arguments *a, const struct net_config *c, struct error *err)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return error_set(err, -errno, "which CPUs this process may use is not known: %s", strerror(errno));
    for (bool taken = true; taken;) { // EAL's own lcore only waits
        taken = false;
        for (uint32_t i = 0; i < c->wires; i++) taken |= c->port[i].lcore == a->main_lcore;
        if (taken) a->main_lcore++;
    }
    char text[192];
    size_t n =
        (size_t)snprintf(text, sizeof text, "--lcores=%u@%u", a->main_lcore, cpu_of(a->main_lcore, &allowed));
    for (uint32_t i = 0; i < c->wires && n < sizeof text; i++) {
        uint32_t lcore = c->port[i].lcore;
        for (uint32_t k = 0; k < i; k++) {
            if (c->port[k].lcore == lcore)
                return error_set(err, -EINVAL, "ports %u and %u have the same lcore %u", k, i, lcore);
        }
        n += (size_t)snprintf(text + n, sizeof text - n, ",%u@%u", lcore, cpu_of(lcore, &allowed));
    }
    add(a, "%s", text);
    add(a, "--main-lcore=%u", a->main_lcore);
    return 0;
}

/* Of any size. What DPDK says without any is "Permission denied". */
static bool huge_pages_free(void)
{
    glob_t g;
    unsigned long free_pages = 0;
    if (glob("/sys/kernel/mm/hugepages/hugepages-*/free_hugepages", 0, NULL, &g) != 0) return false;
    for (size_t i = 0; i < g.gl_pathc && free_pages == 0; i++) {
        FILE *f = fopen(g.gl_pathv[i], "re");
        if (!f) continue;
        if (fscanf(f, "%lu", &free_pages) != 1) free_pages = 0;
        fclose(f);
    }
    globfree(&g);
    return free_pages > 0;
}

int eal_arguments_make(struct eal_arguments *a, const struct net_config *c, struct error *err)
{
    *a = (struct eal_arguments){0};
    add(a, "duckd");
    int rc = add_lcores(a, c, err);
    if (rc) return rc;
    if (c->huge_pages && !huge_pages_free()) {
        return error_set(
            err, -ENOMEM,
            "no huge page is free: reserve some (64 of 2 MiB for each port: sysctl vm.nr_hugepages=N) or "
            "leave \"huge_pages\" out of the flock's file");
    }
    bool pci = false;
    for (uint32_t i = 0; i < c->wires; i++) {
        pci |= *c->port[i].pci;
        if (*c->port[i].pci) {
            add(a, "--allow=%s", c->port[i].pci);
        } else {
            add(a, "--vdev=%s", c->port[i].device);
        }
    }
    if (!pci) add(a, "--no-pci");
    if (c->huge_pages) {
        add(a, "--in-memory");
    } else {
        add(a, "--no-huge");
        add(a, "-m");
        add(a, "%u", c->memory_mb);
        add(a, "--no-shconf");
    }
    add(a, "--file-prefix=duckd%d", (int)getpid());
    add(a, "--no-telemetry");
    add(a, "--log-level=error");
    return 0;
}
