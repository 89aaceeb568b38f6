/* config.h: how a network flock is reached: ports, ducks, key, timing. Read from the flock's JSON file
 * (docs/flock.md) by config.c; plain data otherwise. */
#ifndef DUCKD_HOST_FLOCK_NET_CONFIG_H
#define DUCKD_HOST_FLOCK_NET_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "duck/siphash.h"
#include "host/util/error.h"

#define NET_MAX_PORTS 16u
#define NET_INSIDE_CORES 64u

/* What a HELLO must say to be this duck; with nothing given, any duck will do. */
struct net_match {
    uint32_t port;    // index of its port
    uint32_t address; // IPv4, most significant byte first; 0: not given
    uint16_t udp;     // UDP port
    bool has_mac, has_name;
    uint8_t mac[6];
    char name[32];
};

struct net_port_config {
    char device[128]; // DPDK vdev ("net_af_packet,iface=p0"), empty if pci
    char pci[16];     // "0000:81:00.0"
    uint32_t lcore;
    uint32_t address, prefix; // of this host on the port
    uint32_t broadcast;       // 0: none, every duck is sent its own copy (UDP only)
    bool exception_tap;       // DPDK: frames that are not the ducks' go to a tap
};

/* The duck in this process. */
struct net_inside {
    uint64_t memory_bytes; // 0: there is none
    uint32_t cores;
};

struct net_config {
    uint32_t ports, ducks;
    uint32_t
        wires; // ports with a device or a socket; the duck in this process has one more, the last, without
    struct net_inside inside;
    struct net_port_config port[NET_MAX_PORTS + 1];
    struct net_match *match; // (ducks)
    struct siphash_key key;
    char key_text[33];    // its 32 digits, for duck.conf
    uint32_t find_ms;     // wait so long for ducks to say HELLO
    uint32_t may_miss;    // so many may be missing then
    uint32_t dead_ms;     // silent for so long: lost
    uint32_t lease_ms;    // as in struct wire_open
    uint32_t gap_us;      // likewise
    uint32_t payload;     // largest fragment; ducks that take less make it less
    uint32_t step_tokens; // larger steps are cut into blocks of so many tokens
    uint16_t host_udp;    // UDP port of this host; 0: any (UDP transport only)
    bool poll;            // DPDK: workers and whoever waits for a step never sleep
    bool huge_pages;      // DPDK
    uint32_t memory_mb;   // DPDK without huge pages
    char program[512];    // ELF for bare-metal ducks; empty: none
    bool program_named;   // by the file: for all ducks that take one
    bool boot;            // DPDK: bare-metal ducks boot from us (boot.h)
    char boot_image[512]; // what they boot; empty: none lies beside duckd
    char boot_dir[512];   // where dnsmasq finds everything
    char manifest[512];   // file that says what ducks hold; empty: none is kept
    char places[512];     // beginning of the name of the file that says who had which place (places.c)
    char plans[512];      // beginning of the files' names that keep plans (plan_file.h); empty: none
};

/* Reads everything but "transport" and the ducks' name, weight and memory_gb from the root object. `dpdk`:
 * ports are devices instead of addresses. */
int net_config_read(struct net_config *out, const cJSON *root, bool dpdk, const char *name,
                    struct error *err);
void net_config_free(struct net_config *c);

/* A part of net_config_read(): devices, addresses and MAC addresses that stand twice or where they cannot be.
 */
int net_config_check(const struct net_config *c, bool dpdk, const char *name, struct error *err);

int net_parse_address(const char *text, uint32_t *address); // 0 or -EINVAL
void net_show_address(uint32_t address, char out[16]);
struct net_mac_text {
    char s[18];
};
struct net_mac_text net_show_mac(const uint8_t mac[6]);

#endif
