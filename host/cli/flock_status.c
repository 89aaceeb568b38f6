/* flock_status.c: `duckd flock status`: every duck of a network flock, what it is, who uses it, what it has
 * done. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "host/cli/flock_care.h"
#include "host/cli/output.h"
#include "host/flock/net/status.h"
#include "host/flock/transport.h"

static void address_text(const struct net_status *s, char out[24])
{
    char address[16];
    net_show_address(s->address, address);
    snprintf(out, 24, "%s:%u", s->address ? address : "-", s->udp);
}

static void holder_text(const struct net_status *s, char out[40])
{
    char address[16];
    net_show_address(s->hello.holder_address, address);
    if (!s->found) {
        snprintf(out, 40, "no answer");
    } else if (s->hello.holder_session) {
        snprintf(out, 40, "held by %s", address);
    } else {
        snprintf(out, 40, "free");
    }
}

/* "-": a duck says 0 of what it does not know. */
static void known(char out[12], double x, int decimals)
{
    snprintf(out, 12, "%.*f", decimals, x);
    if (!(x > 0)) strcpy(out, "-");
}

static const char *held_as(const struct wire_stats *s)
{
    return s->held_format == 0             ? "-"
           : s->held_format <= FP9_FORMATS ? fp9_format_name((enum fp9_format)(s->held_format - 1))
                                           : "?";
}

static void print_table(const struct net_status *s, uint32_t count)
{
    printf("%-14s %4s %-21s %-22s %5s %8s %7s %8s %-18s %8s %-6s %10s %12s %9s %9s\n", "duck", "port",
           "address", "state", "cores", "free GB", "Mb/s", "GB/s", "firmware", "held GB", "as", "steps",
           "expert reads", "asked", "bad");
    for (uint32_t i = 0; i < count; i++, s++) {
        char address[24], holder[40];
        address_text(s, address);
        holder_text(s, holder);
        printf("%-14s %4" PRIu32 " %-21s %-22s", s->name, s->port, address, holder);
        if (s->found) {
            char link[12], reads[12];
            known(link, s->hello.link_mbps, 0);
            known(reads, (double)s->hello.read_bytes_per_second / 1e9, 1);
            printf(" %5u %8.2f %7s %8s %-18s", s->hello.cores, (double)s->hello.memory_free / 1e9, link,
                   reads, s->hello.firmware);
        }
        if (s->counted) {
            printf(" %8.2f %-6s %10" PRIu64 " %12" PRIu64 " %9" PRIu64 " %9" PRIu64,
                   (double)s->stats.bytes_held / 1e9, held_as(&s->stats), s->stats.steps,
                   s->stats.expert_reads, s->stats.resend_asked + s->stats.resend_served,
                   s->stats.bad_frame + s->stats.bad_tag + s->stats.nic_dropped);
        }
        putchar('\n');
    }
}

static void print_text(const char *key, const char *text)
{
    printf(", \"%s\": ", key);
    output_json_string(stdout, text, strlen(text));
}

static void print_counters(const struct wire_stats *s)
{
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {{"uptime_us", s->uptime_us},
                {"frames_in", s->frames_in},
                {"bytes_in", s->bytes_in},
                {"frames_out", s->frames_out},
                {"bytes_out", s->bytes_out},
                {"steps", s->steps},
                {"expert_reads", s->expert_reads},
                {"expert_bytes", s->expert_bytes},
                {"compute_us", s->compute_us},
                {"bad_frame", s->bad_frame},
                {"bad_tag", s->bad_tag},
                {"stranger", s->stranger},
                {"duplicate", s->duplicate},
                {"late", s->late},
                {"unexpected", s->unexpected},
                {"resend_asked", s->resend_asked},
                {"resend_served", s->resend_served},
                {"nic_dropped", s->nic_dropped},
                {"send_failed", s->send_failed},
                {"sessions", s->sessions},
                {"faults", s->faults},
                {"units_held", s->units_held},
                {"bytes_held", s->bytes_held},
                {"memory_tested", s->memory_tested},
                {"memory_bad", s->memory_bad},
                {"care", s->care},
                {"start_ms", s->start_ms},
                {"core_mhz", s->core_mhz},
                {"base_mhz", s->base_mhz},
                {"celsius", s->celsius},
                {"celsius_most", s->celsius_most},
                {"power_1_mw", s->power_1_mw},
                {"power_2_mw", s->power_2_mw},
                {"turbo_mhz", s->turbo_mhz},
                {"loaded_mhz", s->loaded_mhz}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        printf(", \"%s\": %" PRIu64, rows[i].name, rows[i].value);
}

static void print_json(const struct net_status *s, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++, s++) {
        char address[24], holder[16];
        const struct wire_hello *h = &s->hello;
        address_text(s, address);
        net_show_address(h->holder_address, holder);
        printf("%s{\"port\": %" PRIu32 ", \"found\": %s", i ? ",\n " : "[", s->port,
               s->found ? "true" : "false");
        print_text("name", s->name);
        print_text("address", address);
        if (s->found) {
            char mac[18];
            snprintf(mac, sizeof mac, "%02x:%02x:%02x:%02x:%02x:%02x", h->mac[0], h->mac[1], h->mac[2],
                     h->mac[3], h->mac[4], h->mac[5]);
            print_text("mac", mac);
            print_text("says", h->name);
            print_text("cpu", h->cpu);
            print_text("firmware", h->firmware);
            print_text("held_by", h->holder_session ? holder : "");
            printf(", \"session\": %" PRIu32 ", \"protocol\": %" PRIu32 ", \"boot_id\": %" PRIu64,
                   h->holder_session, h->version, h->boot_id);
            printf(", \"cores\": %u, \"memory_total\": %" PRIu64 ", \"memory_free\": %" PRIu64
                   ", \"link_mbps\": %" PRIu32 ", \"read_bytes_per_second\": %" PRIu64
                   ", \"payload\": %" PRIu32,
                   h->cores, h->memory_total, h->memory_free, h->link_mbps, h->read_bytes_per_second,
                   h->payload);
        }
        if (s->counted) {
            print_text("held_as", s->stats.held_format ? held_as(&s->stats) : "");
            print_counters(&s->stats);
        }
        putchar('}');
    }
    puts("]");
}

int flock_status(const struct options *o, const struct flock_spec *spec, const bool *wanted,
                 struct error *err)
{
    struct net_status *status;
    int rc = net_look(spec, NET_WANT_STATS, FP9_FP9, wanted, spec->net->find_ms, &status, err);
    if (rc) return rc;
    uint32_t count = flock_keep_wanted(status, spec->ducks), missing = 0;
    (o->json ? print_json : print_table)(status, count);
    for (uint32_t i = 0; i < count; i++) missing += !status[i].found;
    rc = output_finish(err);
    if (!rc && missing)
        rc = error_set(err, -ENODEV, "%" PRIu32 " of %" PRIu32 " ducks %s not answer", missing, count,
                       missing == 1 ? "does" : "do");
    free(status);
    return rc;
}
