// vocabulary.c: open addressing, FNV-1a.
#include "host/text/vocabulary.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int vocabulary_init(struct vocabulary *v, size_t entries)
{
    size_t slots = 16;
    while (slots < 2 * entries) slots *= 2;
    v->mask = slots - 1;
    v->slots = calloc(slots, sizeof *v->slots);
    return v->slots ? 0 : -ENOMEM;
}

void vocabulary_free(struct vocabulary *v)
{
    free(v->slots);
    v->slots = NULL;
}

static struct vocabulary_entry *find(const struct vocabulary *v, const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *c = text; *c; c++) hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    size_t at = (size_t)(hash ^ hash >> 32) & v->mask;
    while (v->slots[at].text && strcmp(v->slots[at].text, text) != 0) at = (at + 1) & v->mask;
    return &v->slots[at];
}

int vocabulary_add(struct vocabulary *v, const char *text, int32_t id)
{
    struct vocabulary_entry *slot = find(v, text);
    if (slot->text) return -EEXIST;
    *slot = (struct vocabulary_entry){text, id};
    return 0;
}

int32_t vocabulary_find(const struct vocabulary *v, const char *text)
{
    const struct vocabulary_entry *slot = find(v, text);
    return slot->text ? slot->id : -1;
}
