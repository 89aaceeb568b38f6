/* duck_linux.c: duck-linux: a duck as a Linux process. Options, threads, end. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "duck/duck.h"
#include "duck/linux/nic_packet.h"
#include "duck/linux/nic_udp.h"
#include "duck/linux/platform_linux.h"
#include "duck/net.h"
#include "fp9/fp9_down.h"

enum { CORES_MAX = 256 };

static const char help[] =
    "usage: duck-linux --key FILE (--udp ADDRESS | --interface IF --address ADDRESS) [options]\n"
    "\n"
    "Computes experts for a flock: waits for a host that has the same key.\n"
    "\n"
    "  --udp ADDRESS        answer through a UDP socket bound to ADDRESS (0.0.0.0: all; 127.0.0.1 for "
    "tests)\n"
    "  --interface IF       or through raw frames of interface IF (needs CAP_NET_RAW), with\n"
    "  --address ADDRESS      an IPv4 address of its own, unknown to the kernel\n"
    "  --mac MAC              and a MAC address of its own (default: the interface's)\n"
    "  --port N             UDP port (default 21210)\n"
    "  --mtu N              largest IP packet (default: the interface's; 1500 with --udp)\n"
    "  --key FILE           the flock key: 32 hexadecimal digits\n"
    "  --cores N            threads that compute (default 1)\n"
    "  --memory SIZE        for weights and steps: 512M, 12G ... (default: 90 % of what is available)\n"
    "  --name NAME          shown by the host (default: the host name)\n"
    "  --spin-us N          microseconds without work before a core sleeps (default 50)\n"
    "  --kernels NAME       scalar, avx2 ... (default: the best of this CPU)\n"
    "  --help\n";

struct arguments {
    const char *udp, *interface, *key, *kernels;
    uint32_t address, udp_address, mtu, cores;
    uint16_t port;
    uint8_t mac[6];
    int own_mac;
    uint64_t memory, spin_us;
    char name[32];
};

static int wrong(const char *what, const char *value)
{
    fprintf(stderr, "duck-linux: %s", what);
    if (*value) fprintf(stderr, ": '%s'", value);
    fputs(" (try: duck-linux --help)\n", stderr);
    return 2;
}

static int parse_number(const char *text, uint64_t least, uint64_t most, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == 0 && *text != '-' && *out >= least && *out <= most;
}

static int parse_size(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    unsigned shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (shift) end++;
    if (errno || end == text || *end || *text == '-' || *out > UINT64_MAX >> (shift + 1)) return 0;
    *out <<= shift;
    return *out >= DUCK_MEMORY_MIN;
}

static int parse_address(const char *text, uint32_t *out)
{
    struct in_addr a;
    if (inet_pton(AF_INET, text, &a) != 1) return 0;
    *out = ntohl(a.s_addr);
    return 1;
}

static int parse_mac(const char *text, uint8_t mac[6])
{
    unsigned m[6];
    char rest;
    if (sscanf(text, "%2x:%2x:%2x:%2x:%2x:%2x%c", &m[0], &m[1], &m[2], &m[3], &m[4], &m[5], &rest) != 6)
        return 0;
    for (int i = 0; i < 6; i++) mac[i] = (uint8_t)m[i];
    return (mac[0] & 1) == 0; // not a group address
}

static int read_key(const char *path, struct siphash_key *out)
{
    char text[34] = "";
    uint8_t key[16];
    FILE *f = fopen(path, "re");
    if (!f) {
        fprintf(stderr, "duck-linux: key file %s: %s\n", path, strerror(errno));
        return 0;
    }
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    if (n == 33 && text[32] == '\n') n = 32;
    for (size_t i = 0; i < 16; i++) {
        unsigned byte;
        if (n != 32 || strspn(text + 2 * i, "0123456789abcdefABCDEF") < 2 ||
            sscanf(text + 2 * i, "%2x", &byte) != 1) {
            fprintf(stderr, "duck-linux: key file %s does not hold 32 hexadecimal digits\n", path);
            return 0;
        }
        key[i] = (uint8_t)byte;
    }
    *out = siphash_key(key);
    return 1;
}

/* 90 % of MemAvailable. */
static uint64_t default_memory(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    unsigned long long kb = 1 << 20;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1) break;
    if (f) fclose(f);
    return kb * 1024 / 10 * 9;
}

/* One option; 0, or the exit status. */
static int take_option(struct arguments *a, int option, const char *value)
{
    uint64_t n;
    switch (option) {
    case 'u':
        a->udp = value;
        return parse_address(value, &a->udp_address) ? 0 : wrong("--udp wants an IPv4 address", value);
    case 'i':
        a->interface = value;
        return 0;
    case 'a':
        return parse_address(value, &a->address) && a->address
                   ? 0
                   : wrong("--address wants an IPv4 address", value);
    case 'm':
        a->own_mac = 1;
        return parse_mac(value, a->mac) ? 0 : wrong("--mac wants something like 02:00:00:00:00:01", value);
    case 'p':
        if (!parse_number(value, 1, 65535, &n)) return wrong("--port is 1 .. 65535", value);
        a->port = (uint16_t)n;
        return 0;
    case 't':
        if (!parse_number(value, 1500, 65535, &n)) return wrong("--mtu is 1500 or more", value);
        a->mtu = (uint32_t)n;
        return 0;
    case 'k':
        a->key = value;
        return 0;
    case 'c':
        if (!parse_number(value, 1, CORES_MAX, &n)) return wrong("--cores is 1 .. 256", value);
        a->cores = (uint32_t)n;
        return 0;
    case 'M':
        return parse_size(value, &a->memory) ? 0 : wrong("--memory wants a size of 4M at least", value);
    case 'n':
        snprintf(a->name, sizeof a->name, "%s", value);
        return 0;
    case 's':
        return parse_number(value, 0, 10000000, &a->spin_us) ? 0 : wrong("--spin-us is 0 .. 10000000", value);
    case 'K':
        a->kernels = value;
        return 0;
    case ':':
        return wrong("this option needs a value", value);
    default:
        return wrong("unknown option", value);
    }
}

static int parse_arguments(struct arguments *a, int argc, char **argv)
{
    static const struct option options[] = {
        {"udp", 1, NULL, 'u'},    {"interface", 1, NULL, 'i'}, {"address", 1, NULL, 'a'},
        {"mac", 1, NULL, 'm'},    {"port", 1, NULL, 'p'},      {"mtu", 1, NULL, 't'},
        {"key", 1, NULL, 'k'},    {"cores", 1, NULL, 'c'},     {"name", 1, NULL, 'n'},
        {"memory", 1, NULL, 'M'}, {"spin-us", 1, NULL, 's'},   {"kernels", 1, NULL, 'K'},
        {"help", 0, NULL, 'h'},   {NULL, 0, NULL, 0}};
    *a = (struct arguments){.port = WIRE_DUCK_PORT, .cores = 1, .spin_us = 50};
    gethostname(a->name, sizeof a->name - 1);
    for (int option; (option = getopt_long(argc, argv, ":h", options, NULL)) != -1;) { // ':': it says nothing
        if (option == 'h') {
            fputs(help, stdout);
            exit(0);
        }
        char letter[] = {'-', (char)optopt, 0}; // of several behind one dash
        const char *word = argv[optind - 1];
        if (option == '?' && strncmp(word, "--", 2)) word = letter;
        int rc = take_option(a, option, strchr(":?", option) ? word : optarg);
        if (rc) return rc;
    }
    if (optind < argc) return wrong("unexpected argument", argv[optind]);
    if (!a->key) return wrong("--key FILE is missing", "");
    if (!a->udp == !a->interface) return wrong("one of --udp and --interface is needed", "");
    if (a->interface && !a->address) return wrong("--interface needs --address", a->interface);
    if (a->memory == 0) a->memory = default_memory();
    return 0;
}

/* Kernels keep their sums on the stack of whichever thread runs them, and a thread's is as large as this
 * limit: with less it would be a fault instead of a message. */
static int enough_stack(void)
{
    enum { NEEDS_KIB = 512 };
    static_assert(FP9_DOWN_CELLS + (128 << 10) <= NEEDS_KIB << 10, "the sums, and frames around them");
    struct rlimit l;
    if (getrlimit(RLIMIT_STACK, &l) || l.rlim_cur >= (rlim_t)NEEDS_KIB << 10) return 1;
    linux_say("the stack may grow to %llu KiB, %d are needed (ulimit -s %d)",
              (unsigned long long)l.rlim_cur >> 10, NEEDS_KIB, NEEDS_KIB);
    return 0;
}

struct worker {
    pthread_t thread;
    struct duck *duck;
};

static void *work(void *arg)
{
    duck_worker(arg, &platform_linux_stop);
    return NULL;
}

static int run(struct duck *d, const struct platform *p)
{
    static struct worker worker[CORES_MAX];
    uint32_t started = 1; // core 0 is this thread
    int rc = 0;
    for (; started < p->cores; started++) {
        rc = pthread_create(&worker[started].thread, NULL, work, d);
        if (rc) {
            linux_say("thread %u: %s", started, strerror(rc));
            break;
        }
    }
    if (rc == 0) duck_run(d, &platform_linux_stop);
    if (atomic_exchange(&platform_linux_stop, 1) == PLATFORM_LINUX_FAILED) rc = 1;
    for (uint32_t i = 1; i < started; i++) pthread_join(worker[i].thread, NULL);
    return rc ? 1 : 0;
}

int main(int argc, char **argv)
{
    static struct net net;
    static struct nic nic;
    static struct link udp;
    static struct platform platform;
    struct arguments a;
    int rc = parse_arguments(&a, argc, argv);
    if (rc) return rc;

    struct duck_options o = {.platform = &platform};
    if (!read_key(a.key, &o.flock_key)) return 1;
    if (fp9_cpu_missing()) {
        linux_say("this CPU has no %s", fp9_cpu_missing());
        return 1;
    }
    if (!enough_stack()) return 1;
    o.kernels = fp9_select(a.kernels);
    if (!o.kernels) return wrong("no such kernels on this CPU", a.kernels);

    int fd = a.udp ? nic_udp_open(&udp, a.udp_address, a.port, a.mtu ? a.mtu : 1500)
                   : nic_packet_open(&nic, a.interface, a.own_mac ? a.mac : NULL, a.mtu);
    if (fd < 0) return 1;
    if (a.interface) net_init(&net, &nic, a.address, a.port);
    o.link = a.udp ? &udp : &net.link;

    struct linux_options machine = {.name = a.name,
                                    .memory_bytes = a.memory / 64 * 64,
                                    .cores = a.cores,
                                    .spin_ns = a.spin_us * 1000,
                                    .fd = fd,
                                    .gone = a.interface ? nic_packet_gone : NULL};
    if (platform_linux_open(&platform, &machine)) return 1;
    struct duck *d = duck_start(&o);
    if (!d) {
        linux_say("--memory: %llu bytes are too few for a duck", (unsigned long long)a.memory);
        return 1;
    }
    linux_say("ready: port %u, %u core%s, %llu MB, %s kernels", a.port, a.cores, a.cores == 1 ? "" : "s",
              (unsigned long long)(a.memory >> 20), o.kernels->name);
    if (platform.read_bytes_per_second)
        linux_say("memory: %.1f GB/s read", (double)platform.read_bytes_per_second * 1e-9);
    rc = run(d, &platform);
    munmap(platform.memory, platform.memory_bytes);
    close(fd);
    return rc;
}
