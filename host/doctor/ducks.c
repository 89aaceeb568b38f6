/* ducks.c: ducks compared with what their CPUs can do and with each other: one that is slower, smaller,
 * hotter or lossier than its kind holds all of them up. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/doctor/doctor.h"

#define SMALLER 0.9  // of the median memory
#define SLOWER 0.8   // of the median bandwidth, clock: these move by themselves
#define LAGGING 0.95 // of the clock that its CPU holds with all cores busy
#define WEAKER 0.95  // of the median power limit
#define LOSSY 1e-4   // of a duck's frames
#define MISSED 1e-3  // of them: what a duck asks for again may only have been late
#define FEW_FRAMES 10000u

/* What a duck is measured by; 0: nobody knows it. */
struct norm {
    uint32_t link_mbps;                            // the fastest of its port
    double memory, bandwidth, clock, power, burst; // medians
    uint64_t firmware;                             // of most
    enum fp9_format format;                        // that all are to keep experts as
};

static int ascending(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Of those that know it. */
static double median(const struct net_status *s, uint32_t count, double (*value)(const struct net_status *s))
{
    double sorted[FLOCK_MAX_DUCKS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < count && n < FLOCK_MAX_DUCKS; i++)
        if (s[i].found && value(&s[i]) > 0) sorted[n++] = value(&s[i]);
    if (n == 0) return 0;
    qsort(sorted, n, sizeof *sorted, ascending);
    return sorted[n / 2];
}

static double memory_of(const struct net_status *s)
{
    return (double)s->hello.memory_total * 1e-9;
}

static double bandwidth_of(const struct net_status *s)
{
    return (double)s->hello.read_bytes_per_second * 1e-9;
}

/* The lesser of what all its cores ran at when it started, and of core 0's at work since it was last asked.
 */
static double clock_of(const struct net_status *s)
{
    uint32_t a = s->stats.loaded_mhz, b = s->stats.core_mhz;
    return a && (!b || a < b) ? a : b;
}

/* With all cores busy; 0: neither its CPU tells it nor do we know it. */
static double turbo_of(const struct net_status *s)
{
    enum { N100_MHZ = 2900 }; // the machine that duckd is made for; sustained with four cores
    if (s->stats.turbo_mhz) return s->stats.turbo_mhz;
    return strstr(s->hello.cpu, "N100") ? N100_MHZ : 0;
}

static double power_of(const struct net_status *s)
{
    return s->stats.power_1_mw * 1e-3;
}

static double burst_of(const struct net_status *s)
{
    return s->stats.power_2_mw * 1e-3;
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

static struct norm norm_of(const struct net_status *all, uint32_t count, uint32_t port,
                           enum fp9_format format)
{
    struct norm n = {.memory = median(all, count, memory_of),
                     .bandwidth = median(all, count, bandwidth_of),
                     .clock = median(all, count, clock_of),
                     .power = median(all, count, power_of),
                     .burst = median(all, count, burst_of),
                     .firmware = usual_firmware(all, count),
                     .format = format};
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

/* What a duck does not know of itself is no fault. */
static bool is_under(double own, double share, double norm)
{
    return own > 0 && own < share * norm;
}

static void judge_machine(struct finding *f, const struct net_status *s, const struct norm *n)
{
    const struct wire_hello *h = &s->hello;
    if (is_under(h->link_mbps, 1, n->link_mbps))
        blame(f, DOCTOR_ADVICE, "cable, switch port, BIOS", "link %u Mb/s where others have %u", h->link_mbps,
              n->link_mbps);
    if (is_under(memory_of(s), SMALLER, n->memory))
        blame(f, DOCTOR_ADVICE, "a module that is not seated, or a smaller one",
              "%.1f GB of memory where others have %.1f", memory_of(s), n->memory);
    if (is_under(bandwidth_of(s), SLOWER, n->bandwidth))
        blame(f, DOCTOR_ADVICE, "one memory channel instead of two, or slower modules",
              "reads %.1f GB/s where others read %.1f", bandwidth_of(s), n->bandwidth);
    if (is_under(power_of(s), WEAKER, n->power))
        blame(f, DOCTOR_ADVICE, "PL1 in the BIOS", "power limit PL1 %.1f W where others have %.1f",
              power_of(s), n->power);
    if (is_under(burst_of(s), WEAKER, n->burst))
        blame(f, DOCTOR_ADVICE, "PL2 in the BIOS", "power limit PL2 %.1f W where others have %.1f",
              burst_of(s), n->burst);
    if (h->firmware_hash != n->firmware)
        blame(f, DOCTOR_ADVICE, "restart it, so that it boots what the others have (duckd flock reboot)",
              "firmware %s (%016llx), most have another", h->firmware, (unsigned long long)h->firmware_hash);
}

/* Why a clock is low is for the advice; a limit that holds it down and leaves it high enough is none. */
static void judge_clock(struct finding *f, const struct net_status *s, const struct norm *n)
{
    uint32_t care = s->stats.care;
    const char *advice = care & WIRE_TURBO_OFF                          ? "turbo mode in the BIOS"
                         : care & (WIRE_THROTTLED | WIRE_WAS_THROTTLED) ? "cooling"
                         : care & (WIRE_POWER_LIMITED | WIRE_WAS_POWER_LIMITED)
                             ? "power limits PL1 and PL2 in the BIOS"
                             : "turbo, power limits and energy saving in the BIOS; cooling";
    if (is_under(clock_of(s), LAGGING, turbo_of(s)))
        blame(f, DOCTOR_ADVICE, advice, "clock %.0f MHz where its CPU has %.0f with all cores busy",
              clock_of(s), turbo_of(s));
    else if (is_under(clock_of(s), SLOWER, n->clock))
        blame(f, DOCTOR_ADVICE, advice, "clock %.0f MHz where others have %.0f", clock_of(s), n->clock);
    else if (care & WIRE_TURBO_OFF)
        blame(f, DOCTOR_ADVICE, advice, "turbo is switched off");
}

/* What it says of itself, whatever the others say. */
static void judge_health(struct finding *f, const struct wire_stats *s)
{
    if (s->memory_bad)
        blame(f, DOCTOR_MISSING, "replace the module",
              "%llu words of its memory did not keep a pattern at start", (unsigned long long)s->memory_bad);
    if (s->care & WIRE_THROTTLED)
        blame(f, DOCTOR_ADVICE, "cooling", "throttled at %u of %u degrees", s->celsius, s->celsius_most);
    else if (s->care & WIRE_WAS_THROTTLED)
        blame(f, DOCTOR_ADVICE, "cooling", "has been throttled since it was switched on, now %u degrees",
              s->celsius);
    if (s->care & WIRE_CLOCK_LOST)
        blame(f, DOCTOR_ADVICE, "the board's battery", "its real-time clock has lost its time");
    if (s->care & WIRE_CLOCKS_DIFFER)
        blame(f, DOCTOR_ADVICE, "another board", "two of its clocks disagree by more than 1 %%");
}

static bool is_lossy(uint64_t frames, const struct wire_stats *s)
{
    return frames > 10 && (double)frames > LOSSY * (double)s->frames_in;
}

static void judge_counters(struct finding *f, const struct wire_stats *s)
{
    const uint64_t lost = s->nic_dropped + s->send_failed;
    if (is_lossy(lost, s))
        blame(f, DOCTOR_ADVICE, "cable, flow control, switch buffers", "lost %llu of %llu frames",
              (unsigned long long)lost, (unsigned long long)s->frames_in);
    if (is_lossy(s->bad_frame, s))
        blame(f, DOCTOR_ADVICE, "what else sends to its port? is a host of another version on this network?",
              "%llu of %llu frames were none of this protocol", (unsigned long long)s->bad_frame,
              (unsigned long long)s->frames_in);
    if (s->frames_in > FEW_FRAMES && (double)s->resend_asked > MISSED * (double)s->frames_in)
        blame(f, DOCTOR_ADVICE, "cable, switch, another daemon with the same ducks",
              "asked again for %llu of %llu frames", (unsigned long long)s->resend_asked,
              (unsigned long long)s->frames_in);
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
        struct doctor_silence why = doctor_silence(s);
        blame(f, DOCTOR_MISSING, why.advice, "%s", why.found);
        return;
    }
    if (s->tested && !s->sound)
        blame(f, DOCTOR_MISSING, "memory test; no overclocking",
              "computes wrongly: its known answer in %s is not the right one", fp9_format_name(s->format));
    if (!s->tested && !s->hello.holder_session)
        blame(f, DOCTOR_MISSING, "restart it", "has not answered the known-answer test");
    if (n->format == FP9_E4M3 && !(s->hello.features & WIRE_E4M3))
        blame(f, DOCTOR_MISSING, "newer firmware, or --expert-format fp9",
              "firmware %s keeps experts as fp9 only", s->hello.firmware);
    judge_machine(f, s, n);
    if (s->boot.failures)
        blame(f, DOCTOR_ADVICE, "cable, switch; the log of dnsmasq says more",
              "TFTP failed %u time%s in %u start%s through PXE", s->boot.failures,
              s->boot.failures == 1 ? "" : "s", s->boot.starts, s->boot.starts == 1 ? "" : "s");
    if (!s->counted) {
        blame(f, DOCTOR_ADVICE, "restart it", "has not told its counters");
        return;
    }
    judge_clock(f, s, n);
    judge_health(f, &s->stats);
    judge_counters(f, &s->stats);
}

__attribute__((format(printf, 2, 3))) static void add(struct finding *f, const char *format, ...)
{
    size_t n = strlen(f->found);
    va_list ap;
    va_start(ap, format);
    vsnprintf(f->found + n, sizeof f->found - n, format, ap);
    va_end(ap);
}

/* What is known of it, well or not. */
static void describe(struct finding *f, const struct net_status *s)
{
    const struct wire_stats *t = &s->stats;
    const char *limited = t->care & WIRE_POWER_LIMITED       ? " (holds it down)"
                          : t->care & WIRE_WAS_POWER_LIMITED ? " (has held it down)"
                                                             : "";
    char answer[48] = "in use, so not tested";
    if (s->tested)
        snprintf(answer, sizeof answer, "the known answer is right in %s", fp9_format_name(s->format));
    if (f->verdict == DOCTOR_OK)
        add(f, "%s (", answer);
    else
        add(f, " (%s%s", s->tested && s->sound ? answer : "", s->tested && s->sound ? ", " : "");
    if (s->hello.link_mbps) add(f, "%u Mb/s, ", s->hello.link_mbps);
    add(f, "%.1f GB", memory_of(s));
    if (bandwidth_of(s) > 0) add(f, ", %.1f GB/s", bandwidth_of(s));
    if (clock_of(s) > 0) add(f, ", %.0f MHz", clock_of(s));
    if (turbo_of(s) > 0) add(f, " (its CPU: %.0f with all cores busy)", turbo_of(s));
    if (t->power_1_mw || t->power_2_mw)
        add(f, ", PL1 %.1f W, PL2 %.1f W%s", power_of(s), burst_of(s), limited);
    if (t->celsius_most) add(f, ", %u of %u degrees", t->celsius, t->celsius_most);
    if (s->boot.starts)
        add(f, ", started %u time%s through PXE", s->boot.starts, s->boot.starts == 1 ? "" : "s");
    add(f, ", %s)", s->hello.firmware);
}

void doctor_ducks(struct doctor *d, enum fp9_format format, const struct net_status *status, uint32_t count)
{
    d->count = 0;
    for (uint32_t i = 0; i < count && d->count < DOCTOR_FINDINGS; i++) {
        const struct net_status *s = &status[i];
        struct norm n = norm_of(status, count, s->port, format);
        struct finding *f = &d->finding[d->count++];
        *f = (struct finding){.verdict = DOCTOR_OK};
        snprintf(f->name, sizeof f->name, "%.31s", s->name);
        judge(f, s, &n);
        if (s->found) describe(f, s);
    }
}
