/* dhcp.c: the DHCP client (RFC 2131; options: RFC 2132). */
#include "duck/dhcp.h"

#include <string.h>

#include "duck/net.h"
#include "duck/packet.h"

enum { CLIENT_PORT = 68, SERVER_PORT = 67, MESSAGE_BYTES = 300 /* the least that old relays pass on */ };
/* RFC 2131, figure 1. */
enum {
    OP = 0,
    HARDWARE_TYPE = 1,
    HARDWARE_BYTES = 2,
    TRANSACTION = 4,
    CLIENT_ADDRESS = 12,
    YOUR_ADDRESS = 16,
    CLIENT_MAC = 28,
    COOKIE = 236,
    OPTIONS = 240,
};
enum { REQUEST_OP = 1, REPLY_OP = 2, ETHERNET = 1 };
enum { DISCOVER = 1, OFFER = 2, REQUEST = 3, ACK = 5, NAK = 6 };
enum {
    OPTION_PAD = 0,
    OPTION_REQUESTED = 50,
    OPTION_LEASE = 51,
    OPTION_TYPE = 53,
    OPTION_SERVER = 54,
    OPTION_CLASS = 60,
    OPTION_END = 255,
};
static const uint8_t cookie[4] = {99, 130, 83, 99};
#define SECOND ((uint64_t)1000000000u)
#define FOREVER 0xffffffffu

static uint8_t *put_option32(uint8_t *p, uint8_t code, uint32_t v)
{
    p[0] = code;
    p[1] = 4;
    packet_put32(p + 2, v);
    return p + 6;
}

static void send_message(struct dhcp *d, uint8_t type)
{
    static const char class[] = "duck";
    struct peer to = {.address = 0xffffffff, .port = SERVER_PORT, .mac = {255, 255, 255, 255, 255, 255}};
    uint8_t *m = d->out + NET_UDP_HEADERS, *o = m + OPTIONS;
    uint32_t from = 0;
    memset(m, 0, MESSAGE_BYTES);
    m[OP] = REQUEST_OP;
    m[HARDWARE_TYPE] = ETHERNET;
    m[HARDWARE_BYTES] = 6;
    packet_put32(m + TRANSACTION, d->transaction);
    memcpy(m + CLIENT_MAC, d->below->mac, 6);
    memcpy(m + COOKIE, cookie, sizeof cookie);
    *o++ = OPTION_TYPE;
    *o++ = 1;
    *o++ = type;
    *o++ = OPTION_CLASS;
    *o++ = sizeof class - 1;
    memcpy(o, class, sizeof class - 1);
    o += sizeof class - 1;
    if (d->state == DHCP_REQUESTING) { // 4.3.2: what was offered, by whom
        o = put_option32(o, OPTION_REQUESTED, d->offered);
        o = put_option32(o, OPTION_SERVER, d->server);
    }
    if (d->state == DHCP_RENEWING) { // to the server alone, from the address it is about
        packet_put32(m + CLIENT_ADDRESS, d->offered);
        from = d->offered;
        to = d->renew_from;
    }
    *o = OPTION_END;
    struct frame f = {d->out, net_udp_frame(d->out, d->below->mac, from, CLIENT_PORT, &to, m, MESSAGE_BYTES)};
    d->below->send(d->below->self, &f, 1); // lost or not taken: sent again later
    d->sent++;
}

static void enter(struct dhcp *d, enum dhcp_state state, uint64_t now)
{
    d->state = state;
    d->tries = 0;
    d->next_ns = now;
    if (state == DHCP_SELECTING) {
        *d->address = 0;
        d->p->random(d->p->self, (uint8_t *)&d->transaction, sizeof d->transaction);
    }
}

/* 4.1: 1, 2, 4, 8 and then 16 seconds, and up to half a second of difference between machines that were
 * switched on together. */
static uint64_t patience(const struct dhcp *d)
{
    uint32_t doublings = d->tries < 4 ? d->tries : 4;
    return (SECOND << doublings) + (d->transaction & 511) * (SECOND / 1024);
}

static void timers(struct dhcp *d, uint64_t now)
{
    enum { REQUESTS = 4 };
    if (d->state == DHCP_BOUND && now - d->begun_ns >= d->lease_ns / 2) enter(d, DHCP_RENEWING, now);
    if (d->state == DHCP_RENEWING && now - d->begun_ns >= d->lease_ns) {
        d->p->log(d->p->self, "DHCP: the lease ended");
        enter(d, DHCP_SELECTING, now);
    }
    if (d->state == DHCP_BOUND || now < d->next_ns) return;
    if (d->state == DHCP_REQUESTING && d->tries >= REQUESTS) enter(d, DHCP_SELECTING, now);
    send_message(d, d->state == DHCP_SELECTING ? DISCOVER : REQUEST);
    d->next_ns = now + patience(d);
    d->tries++;
}

struct answer {
    uint32_t type, server, lease, address;
};

/* 1: a well-formed reply to our transaction. */
static int parse(const struct dhcp *d, const struct datagram *in, struct answer *a)
{
    const uint8_t *m = in->data;
    *a = (struct answer){0};
    if (in->bytes < OPTIONS || m[OP] != REPLY_OP || memcmp(m + COOKIE, cookie, sizeof cookie) != 0 ||
        packet_get32(m + TRANSACTION) != d->transaction || memcmp(m + CLIENT_MAC, d->below->mac, 6) != 0)
        return 0;
    a->address = packet_get32(m + YOUR_ADDRESS);
    for (uint32_t at = OPTIONS; at < in->bytes && m[at] != OPTION_END;) {
        if (m[at] == OPTION_PAD) {
            at++;
            continue;
        }
        if (at + 2 > in->bytes || at + 2 + m[at + 1] > in->bytes) return 0;
        const uint8_t *value = m + at + 2;
        uint32_t bytes = m[at + 1];
        if (m[at] == OPTION_TYPE && bytes == 1) a->type = value[0];
        if (m[at] == OPTION_SERVER && bytes == 4) a->server = packet_get32(value);
        if (m[at] == OPTION_LEASE && bytes == 4) a->lease = packet_get32(value);
        at += 2 + bytes;
    }
    return a->type != 0;
}

static void bind_address(struct dhcp *d, const struct answer *a, const struct peer *from, uint64_t now)
{
    enum { SHORTEST = 10 };
    d->begun_ns = now;
    d->lease_ns = (a->lease < SHORTEST ? SHORTEST : a->lease) * SECOND;
    if (a->lease == FOREVER) d->lease_ns = UINT64_MAX / 2;
    d->renew_from = *from;
    d->offered = a->address;
    if (*d->address != a->address) d->p->log(d->p->self, "DHCP: have an address");
    *d->address = a->address;
    enter(d, DHCP_BOUND, now);
}

static void take(struct dhcp *d, const struct datagram *in, uint64_t now)
{
    struct answer a;
    int asks = d->state == DHCP_REQUESTING || d->state == DHCP_RENEWING;
    if (!parse(d, in, &a)) {
        d->ignored++;
    } else if (d->state == DHCP_SELECTING && a.type == OFFER && a.address && a.server) {
        d->offered = a.address;
        d->server = a.server;
        enter(d, DHCP_REQUESTING, now);
    } else if (asks && a.type == ACK && a.address) {
        d->taken++;
        bind_address(d, &a, &in->peer, now);
    } else if (asks && a.type == NAK) {
        d->refused++;
        enter(d, DHCP_SELECTING, now);
        d->next_ns = now + SECOND; // a server that always refuses is not to be flooded
    } else {
        d->ignored++;
    }
}

static uint32_t dhcp_recv(void *self, struct frame *out, uint32_t max)
{
    struct dhcp *d = self;
    uint64_t now = d->p->now(d->p->self);
    uint32_t n = d->below->recv(d->below->self, out, max), kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct datagram in;
        if (net_udp_parse(&out[i], CLIENT_PORT, &in))
            take(d, &in, now);
        else
            out[kept++] = out[i];
    }
    timers(d, now);
    return kept;
}

static uint32_t dhcp_send(void *self, const struct frame *f, uint32_t count)
{
    struct dhcp *d = self;
    return d->below->send(d->below->self, f, count);
}

static uint32_t dhcp_mbps(void *self)
{
    struct dhcp *d = self;
    return d->below->link_mbps(d->below->self);
}

static void dhcp_stats(void *self, struct nic_stats *out)
{
    struct dhcp *d = self;
    d->below->stats(d->below->self, out);
}

void dhcp_start(struct dhcp *d, const struct nic *below, const struct platform *p, uint32_t *address)
{
    *d = (struct dhcp){.below = below, .p = p, .address = address};
    d->nic = (struct nic){.self = d,
                          .mtu = below->mtu,
                          .recv = dhcp_recv,
                          .send = dhcp_send,
                          .link_mbps = dhcp_mbps,
                          .stats = dhcp_stats};
    memcpy(d->nic.mac, below->mac, 6);
    enter(d, DHCP_SELECTING, p->now(p->self));
}
