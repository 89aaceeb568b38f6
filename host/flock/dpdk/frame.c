/* frame.c: headers out and in. Everything on the wire is big-endian and written byte by byte. */
#include "host/flock/dpdk/frame.h"

#include "duck/packet.h"

_Static_assert(FRAME_HEADERS == PACKET_UDP_DATA && FRAME_ARP == PACKET_ARP_BYTES, "frame.h");

uint32_t frame_write(const struct frame_self *self, const struct net_peer *to, uint8_t *frame, uint32_t bytes)
{
    static const uint8_t everybody[6] = {255, 255, 255, 255, 255, 255};
    packet_headers(frame, (struct packet_end){self->mac, self->address, self->udp},
                   to ? (struct packet_end){to->mac, to->address, to->port}
                      : (struct packet_end){everybody, self->broadcast, WIRE_DUCK_PORT},
                   bytes);
    return FRAME_HEADERS + bytes;
}

enum frame_kind frame_read(const struct frame_self *self, const uint8_t *frame, size_t bytes,
                           struct net_peer *from, const uint8_t **payload, size_t *length)
{
    if (bytes < PACKET_IP) return FRAME_OTHER;
    uint32_t type = packet_get16(frame + PACKET_ETHER_TYPE);
    if (type == PACKET_TYPE_ARP)
        return packet_asks_for(frame, bytes, self->address) ? FRAME_ASKS : FRAME_OTHER;
    if (bytes < FRAME_HEADERS || type != PACKET_TYPE_IP || frame[PACKET_IP] >> 4 != 4) return FRAME_OTHER;
    size_t ip_bytes = 4 * (size_t)(frame[PACKET_IP] & 15), total = packet_get16(frame + PACKET_IP_LENGTH);
    bool fragment = (packet_get16(frame + PACKET_IP_FRAGMENT) & PACKET_FRAGMENT) != 0;
    if (frame[PACKET_IP_PROTOCOL] != PACKET_UDP || fragment || ip_bytes < PACKET_IP_BYTES ||
        total < ip_bytes + PACKET_UDP_BYTES || PACKET_IP + total > bytes ||
        packet_folded(packet_sum(0, frame + PACKET_IP, (uint32_t)ip_bytes)) != 0)
        return FRAME_OTHER;
    const uint8_t *udp = frame + PACKET_IP + ip_bytes;
    size_t udp_bytes = packet_get16(udp + 4);
    if (packet_get32(frame + PACKET_IP_TO) != self->address || packet_get16(udp + 2) != self->udp ||
        udp_bytes < PACKET_UDP_BYTES || udp_bytes > total - ip_bytes)
        return FRAME_OTHER;
    *from = (struct net_peer){.address = packet_get32(frame + PACKET_IP_FROM),
                              .port = (uint16_t)packet_get16(udp)};
    memcpy(from->mac, frame + 6, 6);
    *payload = udp + PACKET_UDP_BYTES;
    *length = udp_bytes - PACKET_UDP_BYTES;
    return FRAME_OURS;
}

void frame_answer_arp(const struct frame_self *self, const uint8_t *request, uint8_t *answer)
{
    packet_answer_arp(answer, request, self->mac, self->address);
}
