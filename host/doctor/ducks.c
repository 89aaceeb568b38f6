/* ducks.c: ducks compared with each other: one that is slower, smaller or lossier than its kind holds all of
 * them up. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/doctor/doctor.h"

#define SMALLER 0.9 // of the median memory
#define SLOWER 0.8  // of the median bandwidth
#define LOSSY 1e-4  // of a duck's frames

/* What a duck is measured by. */
struct norm {
    uint32_t link_mbps;       // the fastest of its port
    double memory, bandwidth; // medians
    uint64_t firmware;        // of most
};

static int ascending(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static double median(const struct net_status *s, uint32_t count, double (*value)(const struct wire_hello *h))
{
    double sorted[FLOCK_MAX_DUCKS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < count && n < FLOCK_MAX_DUCKS; i++)
        if (s[i].found) sorted[n++] = value(&s[i].hello);
    if (n == 0) return 0;
    qsort(sorted, n, sizeof *sorted, ascending);
    return sorted[n / 2];
}

static double memory_of(const struct wire_hello *h)
{
    return (double)h->memory_total;
}

static double bandwidth_of(const struct wire_hello *h)
{
    return (double)h->read_bytes_per_second;
}

static uint64_t usual_firmware(const struct net_status *s, uint32_t count)
{
    uint64_t best = 0;
    uint32_t most = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < count; k++)
            n += s[k].found && s[k].hello.firmware_hash == s[i].hello.firmware_hash;
        if (!s[i].found || n <= most) continue;
        most = n;
        best = s[i].hello.firmware_hash;
    }
    return best;
}

static struct norm norm_of(const struct net_status *all, uint32_t count, uint32_t port)
{
    struct norm n = {.memory = median(all, count, memory_of),
                     .bandwidth = median(all, count, bandwidth_of),
                     .firmware = usual_firmware(all, count)};
    for (uint32_t i = 0; i < count; i++)
        if (all[i].found && all[i].port == port && all[i].hello.link_mbps > n.link_mbps)
            n.link_mbps = all[i].hello.link_mbps;
    return n;
}

/* Adds a fault; the first one's advice counts, the gravest verdict too. */
__attribute__((format(printf, 4, 5))) static void blame(struct finding *f, enum doctor_verdict verdict,
                                                        const char *advice, const char *format, ...)
{
    size_t n = strlen(f->found);
    va_list ap;
    if (verdict > f->verdict) {
        f->verdict = verdict;
        snprintf(f->advice, sizeof f->advice, "%s", advice);
    }
    n += (size_t)snprintf(f->found + n, sizeof f->found - n, "%s", n ? "; " : "");
    if (n >= sizeof f->found) return;
    va_start(ap, format);
    vsnprintf(f->found + n, sizeof f->found - n, format, ap);
    va_end(ap);
}

static void judge_machine(struct finding *f, const struct wire_hello *h, const struct norm *n)
{
    if (h->link_mbps < n->link_mbps)
        blame(f, DOCTOR_ADVICE, "cable, switch port, BIOS", "link %u Mb/s where others have %u", h->link_mbps,
              n->link_mbps);
    if (memory_of(h) < SMALLER * n->memory)
        blame(f, DOCTOR_ADVICE, "a module that is not seated, or a smaller one",
              "%.1f GB of memory where others have %.1f", memory_of(h) * 1e-9, n->memory * 1e-9);
    if (bandwidth_of(h) < SLOWER * n->bandwidth)
        blame(f, DOCTOR_ADVICE, "one memory channel instead of two, or slower modules",
              "reads %.1f GB/s where others read %.1f", bandwidth_of(h) * 1e-9, n->bandwidth * 1e-9);
    if (h->firmware_hash != n->firmware)
        blame(f, DOCTOR_ADVICE, "restart it, so that it boots what the others have (duckd flock reboot)",
              "firmware %s (%016llx), most have another", h->firmware, (unsigned long long)h->firmware_hash);
}

static void judge_counters(struct finding *f, const struct wire_stats *s)
{
    uint64_t lost = s->nic_dropped + s->send_failed + s->bad_frame;
    if ((double)lost > LOSSY * (double)s->frames_in && lost > 10)
        blame(f, DOCTOR_ADVICE, "cable, flow control, switch buffers", "lost %llu of %llu frames",
              (unsigned long long)lost, (unsigned long long)s->frames_in);
    if (s->bad_tag)
        blame(f, DOCTOR_ADVICE, "another host with another key is on this network",
              "%llu frames with a wrong tag", (unsigned long long)s->bad_tag);
    if (s->faults)
        blame(f, DOCTOR_ADVICE, "memory test, temperature; its log says more",
              "programs have failed %llu times", (unsigned long long)s->faults);
}

static void judge(struct finding *f, const struct net_status *s, const struct norm *n)
{
    if (!s->found) {
        blame(f, DOCTOR_MISSING, "power, cable, switch port, its key; duckd flock boot wakes it",
              "does not answer");
        return;
    }
    if (s->tested && !s->sound)
        blame(f, DOCTOR_MISSING, "memory test; no overclocking",
              "computes wrongly: its known answer is not the right one");
    if (!s->tested && !s->hello.holder_session)
        blame(f, DOCTOR_MISSING, "restart it", "has not answered the known-answer test");
    judge_machine(f, &s->hello, n);
    if (s->counted) judge_counters(f, &s->stats);
}

void doctor_ducks(struct doctor *d, const struct net_status *status, uint32_t count)
{
    d->count = 0;
    for (uint32_t i = 0; i < count && d->count < DOCTOR_FINDINGS; i++) {
        const struct net_status *s = &status[i];
        struct norm n = norm_of(status, count, s->port);
        struct finding *f = &d->finding[d->count++];
        *f = (struct finding){.verdict = DOCTOR_OK};
        snprintf(f->name, sizeof f->name, "%.31s", s->name);
        judge(f, s, &n);
        if (f->verdict == DOCTOR_OK)
            snprintf(f->found, sizeof f->found, "%u Mb/s, %.1f GB, %.1f GB/s, %s; %s", s->hello.link_mbps,
                     memory_of(&s->hello) * 1e-9, bandwidth_of(&s->hello) * 1e-9, s->hello.firmware,
                     s->tested ? "the known answer is right" : "in use, so not tested");
    }
}
