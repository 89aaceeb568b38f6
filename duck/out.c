/* out.c: frames on their way to the link, and the log. */
#include "duck/duck_internal.h"

#include <string.h>

uint8_t *duck__out(struct duck *d, const struct peer *to)
{
    struct out *o = &d->out;
    if (o->count == OUT_FRAMES) duck__flush(d);
    if (o->count == OUT_FRAMES) return NULL;
    struct datagram *f = &o->frame[o->count];
    f->peer = *to;
    return f->data + WIRE_HEADER;
}

void duck__send(struct duck *d, struct wire_header h, const struct siphash_key *key)
{
    struct datagram *f = &d->out.frame[d->out.count++];
    f->bytes = wire_seal(f->data, h, key);
}

void duck__flush(struct duck *d)
{
    struct out *o = &d->out;
    while (o->count) {
        uint32_t sent = d->link->send(d->link->self, o->frame, o->count);
        if (sent == 0) return;
        for (uint32_t i = 0; i < sent; i++) d->stats.bytes_out += o->frame[i].bytes;
        d->stats.frames_out += sent;
        // What the link did not take moves to the front; the buffers change places with it.
        for (uint32_t i = sent; i < o->count; i++) {
            struct datagram moved = o->frame[i];
            o->frame[i] = o->frame[i - sent];
            o->frame[i - sent] = moved;
        }
        o->count -= sent;
    }
}

void duck__answer(struct duck *d, const struct peer *to, const struct wire_header *request,
                  enum wire_type type, const void *payload, uint32_t bytes)
{
    uint8_t *p = duck__out(d, to);
    if (!p) {
        d->stats.send_failed++; // whoever asked will ask again
        return;
    }
    if (bytes) memcpy(p, payload, bytes);
    struct wire_header h = {.type = (uint8_t)type,
                            .length = (uint16_t)bytes,
                            .session = request->session,
                            .sequence = request->sequence,
                            .source = request->session ? d->session.terms.duck : 0};
    duck__send(d, h, request->session ? &d->session.key : &d->flock_key);
}

int duck__tell(struct duck *d, enum wire_type type, uint32_t sequence, const void *payload, uint32_t bytes)
{
    uint8_t *p = duck__out(d, &d->session.holder);
    if (!p) return 0;
    if (bytes) memcpy(p, payload, bytes);
    struct wire_header h = {.type = (uint8_t)type,
                            .length = (uint16_t)bytes,
                            .session = d->session.terms.session,
                            .sequence = sequence,
                            .source = d->session.terms.duck};
    duck__send(d, h, &d->session.key);
    return 1;
}

/* "text number" as a line of its own, kept for LOG and given to the platform. */
static void log_number(struct duck *d, const char *text, uint64_t number, unsigned base, size_t least)
{
    char line[160], digits[20];
    size_t n = strlen(text), k = 0;
    if (n > sizeof line - sizeof digits - 2) n = sizeof line - sizeof digits - 2;
    memcpy(line, text, n);
    line[n++] = ' ';
    for (; number || k < least; number /= base) digits[k++] = "0123456789abcdef"[number % base];
    while (k) line[n++] = digits[--k];
    line[n] = 0;
    d->p->log(d->p->self, line);
    line[n++] = '\n';
    if (d->log_end + n > LOG_BYTES) { // the older half goes
        memmove(d->log, d->log + LOG_BYTES / 2, d->log_end - LOG_BYTES / 2);
        d->log_end -= LOG_BYTES / 2;
    }
    memcpy(d->log + d->log_end, line, n);
    d->log_end += (uint32_t)n;
}

void duck__log(struct duck *d, const char *text, uint64_t number)
{
    log_number(d, text, number, 10, 1);
}

void duck__log_session(struct duck *d, const char *text)
{
    log_number(d, text, d->session.terms.session, 16, 8);
}
