/* boot_log.c: reading dnsmasq's log. Lines are "DATE dnsmasq-dhcp[PID]: TRANSACTION WORDS" and
 * "DATE dnsmasq-tftp[PID]: WORDS"; whatever is not understood is skipped. */
#include "host/flock/net/boot_log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LONGEST 1024

struct reader {
    const struct net_config *config;
    struct net_boot_history *out;
    uint32_t address[FLOCK_MAX_DUCKS]; // that each duck was given; 0: none
    unsigned long transaction;         // the last one that said what its client is
    char class[32];
};

/* The duck whose MAC address stands in `text`, with `between` between the numbers; UINT32_MAX: none. */
static uint32_t duck_of_mac(const struct reader *r, const char *text, char between)
{
    for (uint32_t i = 0; i < r->config->ducks; i++) {
        const uint8_t *m = r->config->match[i].mac;
        char mac[18];
        if (!r->config->match[i].has_mac) continue;
        snprintf(mac, sizeof mac, "%02x%c%02x%c%02x%c%02x%c%02x%c%02x", m[0], between, m[1], between, m[2],
                 between, m[3], between, m[4], between, m[5]);
        if (strstr(text, mac)) return i;
    }
    return UINT32_MAX;
}

/* "... to ADDRESS" and the like, at the end of a line. */
static uint32_t duck_of_address(const struct reader *r, const char *text)
{
    const char *last = strrchr(text, ' ');
    for (uint32_t i = 0; last && i < r->config->ducks; i++) {
        char address[16];
        net_show_address(r->address[i], address);
        if (r->address[i] && strcmp(last + 1, address) == 0) return i;
    }
    return UINT32_MAX;
}

static void reach(struct net_boot_history *h, enum net_boot_stage stage)
{
    if (stage > h->stage) h->stage = stage;
}

/* RFC 4578, 2.1: "PXEClient:Arch:00007:..." */
static enum net_boot_stage stage_of_class(const char *class)
{
    static const char pxe[] = "PXEClient:Arch:";
    if (strncmp(class, pxe, sizeof pxe - 1) != 0) return NET_BOOT_OTHER;
    unsigned long architecture = strtoul(class + sizeof pxe - 1, NULL, 10);
    return architecture == 7 || architecture == 9 ? NET_BOOT_ASKED : NET_BOOT_LEGACY;
}

static void take_dhcp(struct reader *r, const char *text)
{
    static const char class[] = "vendor class: ";
    char *words;
    unsigned long transaction = strtoul(text, &words, 10);
    words += *words == ' ';
    if (strncmp(words, class, sizeof class - 1) == 0) {
        r->transaction = transaction;
        snprintf(r->class, sizeof r->class, "%.31s", words + sizeof class - 1);
        return;
    }
    bool discovers = strncmp(words, "DHCPDISCOVER(", 13) == 0;
    bool acknowledged = strncmp(words, "DHCPACK(", 8) == 0;
    uint32_t duck = discovers || acknowledged ? duck_of_mac(r, words, ':') : UINT32_MAX;
    if (duck == UINT32_MAX) return;
    struct net_boot_history *h = &r->out[duck];
    const char *says = r->transaction == transaction ? r->class : "";
    enum net_boot_stage stage = stage_of_class(says);
    if (discovers) { // a new start
        h->stage = stage;
        snprintf(h->class, sizeof h->class, "%s", says);
    }
    const char *given = strchr(words, ' ');
    if (!acknowledged || !given || stage != NET_BOOT_ASKED) return;
    char address[16] = "";
    snprintf(address, sizeof address, "%.*s", (int)strcspn(given + 1, " "), given + 1);
    net_parse_address(address, &r->address[duck]);
    reach(h, NET_BOOT_ADDRESS);
    h->starts++;
}

static void take_tftp(struct reader *r, const char *text)
{
    bool sent = strncmp(text, "sent ", 5) == 0;
    uint32_t duck = duck_of_mac(r, text, '-');
    if (duck == UINT32_MAX) duck = duck_of_address(r, text);
    if (duck == UINT32_MAX) return;
    struct net_boot_history *h = &r->out[duck];
    if (sent && strstr(text, "/BOOTX64.EFI to ")) reach(h, NET_BOOT_IMAGE);
    if (sent && strstr(text, "/duck.conf to ")) reach(h, NET_BOOT_STARTED);
    h->failures += strncmp(text, "failed ", 7) == 0 || strstr(text, "not found") != NULL;
}

void net_boot_read_log(const struct net_config *config, FILE *log, struct net_boot_history *out)
{
    static const char dhcp[] = "dnsmasq-dhcp[", tftp[] = "dnsmasq-tftp[";
    struct reader r = {.config = config, .out = out};
    char line[LONGEST];
    memset(out, 0, config->ducks * sizeof *out);
    while (fgets(line, sizeof line, log)) {
        size_t n = strcspn(line, "\n");
        while (n && line[n - 1] == ' ') n--;
        line[n] = 0;
        const char *is_dhcp = strstr(line, dhcp), *is_tftp = strstr(line, tftp);
        const char *words = is_dhcp ? is_dhcp : is_tftp;
        words = words ? strstr(words, "]: ") : NULL;
        if (words && is_dhcp) take_dhcp(&r, words + 3);
        if (words && !is_dhcp) take_tftp(&r, words + 3);
    }
}

static void log_path(const struct net_config *config, char *out, size_t size)
{
    snprintf(out, size, "%s/dnsmasq.log", config->boot_dir);
}

uint64_t net_boot_log_end(const struct net_config *config)
{
    char path[600];
    struct stat about;
    log_path(config, path, sizeof path);
    return stat(path, &about) == 0 ? (uint64_t)about.st_size : 0;
}

void net_boot_look_up(const struct net_config *config, uint64_t from, struct net_boot_history *out)
{
    char path[600];
    log_path(config, path, sizeof path);
    memset(out, 0, config->ducks * sizeof *out);
    FILE *log = fopen(path, "re");
    if (!log) return;
    if (fseeko(log, (off_t)from, SEEK_SET) == 0) net_boot_read_log(config, log, out);
    fclose(log);
}
