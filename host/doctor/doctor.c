/* doctor.c: what a machine has once: CPU, memory, IOMMU, who runs where and how fast. */
#include "host/doctor/doctor.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/flock/transport.h"

enum { HAS_NONE, HAS_DPDK, HAS_PCI }; // what the flock's ports are

static int kind_of(const struct doctor *d)
{
    if (!d->flock || d->flock->transport != &transport_dpdk) return HAS_NONE;
    for (uint32_t i = 0; i < d->flock->net->ports; i++)
        if (*d->flock->net->port[i].pci) return HAS_PCI;
    return HAS_DPDK;
}

/* What is worth its absence: needed for `kind` of ports and beyond. */
static enum doctor_verdict without(const struct doctor *d, int kind)
{
    return kind_of(d) >= kind ? DOCTOR_MISSING : DOCTOR_ADVICE;
}

/* Word by word: "avx2" is not in "avx256". */
static bool has_word(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = text; (at = strstr(at, word)); at += n)
        if ((at == text || isspace((unsigned char)at[-1])) && (!at[n] || isspace((unsigned char)at[n])))
            return true;
    return false;
}

static void check_cpu(struct doctor *d)
{
    static const char *const wanted[] = {"avx2", "fma", "f16c"};
    static char text[16384];
    if (!doctor__read(d, text, sizeof text, "/proc/cpuinfo")) {
        doctor__say(d, DOCTOR_MISSING, "cpu", "is /proc mounted?", "/proc/cpuinfo cannot be read");
        return;
    }
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (has_word(text, wanted[i])) continue;
        doctor__say(d, DOCTOR_MISSING, "cpu", "another machine: in a VM, pass the host's CPU through",
                    "the CPU has no %s", wanted[i]);
        return;
    }
    doctor__say(d, DOCTOR_OK, "cpu", "", "AVX2, FMA, F16C%s", has_word(text, "avx512f") ? ", AVX-512" : "");
}

/* "Name: 123 kB" of /proc/meminfo. */
static uint64_t meminfo(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

static void check_huge_pages(struct doctor *d)
{
    char text[8192] = "";
    bool used = d->flock && d->flock->net && d->flock->net->huge_pages;
    doctor__read(d, text, sizeof text, "/proc/meminfo");
    uint64_t total = meminfo(text, "HugePages_Total:"), unused = meminfo(text, "HugePages_Free:"),
             kb = meminfo(text, "Hugepagesize:");
    enum doctor_verdict bad = used ? DOCTOR_MISSING : without(d, HAS_PCI);
    // 128 MiB per port are enough for rings and frames.
    uint64_t wanted = (d->flock && d->flock->net ? d->flock->net->ports : 4) * 131072ull;
    doctor__say(
        d, unused * kb >= wanted ? DOCTOR_OK : bad, "hugepages",
        "kernel command line: default_hugepagesz=1G hugepagesz=1G hugepages=4, or sysctl vm.nr_hugepages; "
        "\"huge_pages\": true in the flock's file uses them",
        "%" PRIu64 " of %" PRIu64 " free, %" PRIu64 " kB each; %" PRIu64 " MB wanted", unused, total, kb,
        wanted / 1024);
}

static void check_iommu(struct doctor *d)
{
    int groups = doctor__entries(d, "/sys/kernel/iommu_groups");
    char line[4096] = "", unsafe[8] = "";
    doctor__read(d, line, sizeof line, "/proc/cmdline");
    doctor__read(d, unsafe, sizeof unsafe, "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode");
    if (groups <= 0 && *unsafe == 'Y') {
        doctor__say(d, DOCTOR_ADVICE, "iommu",
                    "switch VT-d or AMD-Vi on: without it a device reaches all memory",
                    "none; vfio runs in its unsafe mode without");
        return;
    }
    if (groups <= 0) {
        doctor__say(d, without(d, HAS_PCI), "iommu",
                    "BIOS: VT-d or AMD-Vi on; kernel command line: intel_iommu=on iommu=pt",
                    "no IOMMU groups");
        return;
    }
    doctor__say(d, has_word(line, "iommu=pt") ? DOCTOR_OK : DOCTOR_ADVICE, "iommu",
                "kernel command line: iommu=pt, so that the kernel's own devices are not slowed down",
                "%d groups%s", groups, has_word(line, "iommu=pt") ? ", pass-through" : "");
}

static void check_vfio(struct doctor *d)
{
    bool there = doctor__exists(d, "/sys/bus/pci/drivers/vfio-pci");
    doctor__say(d, there ? DOCTOR_OK : without(d, HAS_PCI), "vfio", "modprobe vfio-pci", "driver vfio-pci %s",
                there ? "is loaded" : "is not loaded");
}

static void check_memlock(struct doctor *d)
{
    char text[4096] = "", value[32] = "";
    const char *at =
        doctor__read(d, text, sizeof text, "/proc/self/limits") ? strstr(text, "Max locked memory") : NULL;
    if (!at || sscanf(at, "Max locked memory %31s", value) != 1) {
        doctor__say(d, without(d, HAS_PCI), "memlock", "is /proc mounted?", "the limit is unknown");
        return;
    }
    // vfio pins what DPDK takes: the frames of all ports.
    uint64_t limit = !strcmp(value, "unlimited") ? UINT64_MAX : strtoull(value, NULL, 10);
    uint64_t wanted = (uint64_t)(d->flock && d->flock->net ? d->flock->net->memory_mb : 256) << 20;
    bool enough = limit >= wanted;
    if (limit != UINT64_MAX)
        snprintf(value, sizeof value, "%" PRIu64 " kB", limit >> 10); // as ulimit -l says it
    doctor__say(d, enough ? DOCTOR_OK : without(d, HAS_PCI), "memlock",
                "LimitMEMLOCK=infinity in the service, or ulimit -l unlimited",
                "%s may be locked, %" PRIu64 " kB wanted", value, wanted >> 10);
}

/* Calls for the CPU of every port. */
static void for_lcores(struct doctor *d,
                       void (*check)(struct doctor *d, unsigned cpu, char *list, size_t size), char *list,
                       size_t size)
{
    const struct net_config *net = kind_of(d) == HAS_NONE ? NULL : d->flock->net;
    for (uint32_t i = 0; net && i < net->ports; i++) check(d, net->port[i].lcore, list, size);
}

static void note_cpu(char *list, size_t size, unsigned cpu)
{
    size_t n = strlen(list);
    snprintf(list + n, size - n, "%s%u", n ? "," : "", cpu);
}

static void note_shared(struct doctor *d, unsigned cpu, char *list, size_t size)
{
    char isolated[512] = "";
    doctor__read(d, isolated, sizeof isolated, "/sys/devices/system/cpu/isolated");
    if (!doctor__in_list(isolated, cpu)) note_cpu(list, size, cpu);
}

static void check_isolation(struct doctor *d)
{
    char isolated[512] = "", shared[160] = "";
    doctor__read(d, isolated, sizeof isolated, "/sys/devices/system/cpu/isolated");
    for_lcores(d, note_shared, shared, sizeof shared);
    if (*shared || (!*isolated && kind_of(d) == HAS_NONE)) {
        doctor__say(d, DOCTOR_ADVICE, "isolation",
                    "kernel command line: isolcpus, nohz_full and rcu_nocbs with the ports' lcores",
                    "isolated CPUs: %s%s%s", *isolated ? isolated : "none", *shared ? "; not so lcores " : "",
                    shared);
        return;
    }
    doctor__say(d, DOCTOR_OK, "isolation", "", "isolated CPUs: %s", isolated);
}

static void note_slow(struct doctor *d, unsigned cpu, char *list, size_t size)
{
    char governor[32];
    if (doctor__read(d, governor, sizeof governor, "/sys/devices/system/cpu/cpu%u/cpufreq/scaling_governor",
                     cpu) &&
        strcmp(governor, "performance") != 0)
        note_cpu(list, size, cpu);
}

static void check_governor(struct doctor *d)
{
    char governor[32] = "", slow[160] = "";
    if (!doctor__read(d, governor, sizeof governor,
                      "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")) {
        doctor__say(d, DOCTOR_OK, "governor", "", "this machine has no frequency scaling to set");
        return;
    }
    note_slow(d, 0, slow, sizeof slow);
    for_lcores(d, note_slow, slow, sizeof slow);
    doctor__say(d, *slow ? DOCTOR_ADVICE : DOCTOR_OK, "governor", "cpupower frequency-set -g performance",
                "CPU 0: %s%s%s", governor, *slow ? "; not performance: CPU " : "", slow);
}

void doctor_examine(struct doctor *d)
{
    d->count = 0;
    check_cpu(d);
    if (!d->flock || kind_of(d) != HAS_NONE) { // UDP sockets make no use of any of these
        check_huge_pages(d);
        check_iommu(d);
        check_vfio(d);
        check_memlock(d);
        check_isolation(d);
    }
    check_governor(d);
    doctor__nics(d);
}
