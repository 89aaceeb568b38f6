// detokenizer.c: bytes wait in `pending` while they are the start of a character.
#include "host/text/tokenizer.h"

#include <string.h>

#include "host/text/utf8.h"

/* Writes what `pending` holds, if that can be told by now; returns the number of bytes written to out. */
static size_t settle(struct detokenizer *d, char *out)
{
    size_t written = 0;
    while (d->pending_count) {
        int step = utf8_step(d->pending, d->pending_count);
        if (step == 0) break;
        unsigned used = (unsigned)(step > 0 ? step : -step);
        size_t length = step > 0 ? used : UTF8_REPLACEMENT_LENGTH;
        memcpy(out + written, step > 0 ? (const char *)d->pending : UTF8_REPLACEMENT, length);
        written += length;
        d->pending_count -= used;
        memmove(d->pending, d->pending + used, d->pending_count);
    }
    return written;
}

size_t detokenizer_push(struct detokenizer *d, const struct tokenizer *t, int32_t id, char *out)
{
    size_t length = 0, written = 0;
    bool added = false;
    const char *bytes = tokenizer_token(t, id, &length, &added);
    if (!bytes || (added && !d->keep_added)) length = 0;
    for (size_t i = 0; i < length; i++) {
        d->pending[d->pending_count++] = (unsigned char)bytes[i];
        written += settle(d, out + written);
    }
    out[written] = '\0';
    return written;
}

size_t detokenizer_finish(struct detokenizer *d, char *out)
{
    // What is left is the start of one character: one invalid part.
    size_t written = d->pending_count ? UTF8_REPLACEMENT_LENGTH : 0;
    memcpy(out, UTF8_REPLACEMENT, written);
    out[written] = '\0';
    d->pending_count = 0;
    return written;
}
