/* stop_strings.c: one prefix automaton (Knuth-Morris-Pratt) per string, all advanced byte by byte. What is
 * held back is the longest prefix of any string that the text so far ends with. */
#include "host/engine/stop_strings.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct pattern {
    char *text;
    size_t length, matched; // the text so far ends with text[0, matched)
    size_t *border;         // (length) longest proper prefix of text[0, i] that is its suffix
};

struct stop_strings {
    struct pattern *pattern; // (count)
    size_t count;
    char *buffer; // text not yet known to be safe, in front of what the last call released
    size_t length, capacity, released;
    bool found;
};

static int pattern_open(struct pattern *p, const char *text)
{
    p->length = strlen(text);
    p->text = strdup(text);
    p->border = calloc(p->length, sizeof *p->border);
    if (!p->text || !p->border) return -ENOMEM;
    for (size_t i = 1, k = 0; i < p->length; i++) {
        while (k > 0 && text[i] != text[k]) k = p->border[k - 1];
        if (text[i] == text[k]) k++;
        p->border[i] = k;
    }
    return 0;
}

int stop_strings_open(struct stop_strings **out, const char *const *strings, size_t count, struct error *err)
{
    struct stop_strings *s = calloc(1, sizeof *s);
    if (!s) return error_set(err, -ENOMEM, "no memory for stop strings");
    s->pattern = calloc(count + 1, sizeof *s->pattern);
    if (!s->pattern) {
        stop_strings_close(s);
        return error_set(err, -ENOMEM, "no memory for %zu stop strings", count);
    }
    int rc = 0;
    for (size_t i = 0; !rc && i < count; i++) {
        if (!strings[i][0]) {
            rc = error_set(err, -EINVAL, "stop string %zu of %zu is empty", i + 1, count);
            break;
        }
        s->count = i + 1;
        if (pattern_open(&s->pattern[i], strings[i]))
            rc = error_set(err, -ENOMEM, "no memory for stop strings");
    }
    if (rc) {
        stop_strings_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void stop_strings_close(struct stop_strings *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->count; i++) {
        free(s->pattern[i].text);
        free(s->pattern[i].border);
    }
    free(s->pattern);
    free(s->buffer);
    free(s);
}

/* Advances all patterns by a byte. Returns the length of the longest one that is complete, 0: none. */
static size_t advance(struct stop_strings *s, char byte)
{
    size_t complete = 0;
    for (size_t i = 0; i < s->count; i++) {
        struct pattern *p = &s->pattern[i];
        while (p->matched > 0 && p->text[p->matched] != byte) p->matched = p->border[p->matched - 1];
        if (p->text[p->matched] == byte) p->matched++;
        if (p->matched == p->length && p->length > complete) complete = p->length;
    }
    return complete;
}

/* Drops what the last call gave out. */
static void drop_released(struct stop_strings *s)
{
    s->length -= s->released;
    if (s->length) memmove(s->buffer, s->buffer + s->released, s->length);
    s->released = 0;
}

int stop_strings_feed(struct stop_strings *s, const char *piece, size_t length, struct stop_text *out)
{
    *out = (struct stop_text){"", 0};
    if (s->found) return 1;
    drop_released(s);
    if (s->length + length > s->capacity) {
        size_t capacity = 2 * (s->length + length);
        char *grown = realloc(s->buffer, capacity);
        if (!grown) return -ENOMEM;
        s->buffer = grown;
        s->capacity = capacity;
    }
    for (size_t i = 0; i < length; i++) {
        s->buffer[s->length++] = piece[i];
        size_t complete = advance(s, piece[i]);
        if (complete == 0) continue;
        s->found = true;
        *out = (struct stop_text){s->buffer, s->length - complete};
        return 1;
    }
    size_t held = 0;
    for (size_t i = 0; i < s->count; i++)
        if (s->pattern[i].matched > held) held = s->pattern[i].matched;
    s->released = s->length - held;
    if (s->released) *out = (struct stop_text){s->buffer, s->released};
    return 0;
}

struct stop_text stop_strings_finish(struct stop_strings *s)
{
    if (s->found) return (struct stop_text){"", 0};
    drop_released(s);
    s->released = s->length;
    return s->length ? (struct stop_text){s->buffer, s->length} : (struct stop_text){"", 0};
}
