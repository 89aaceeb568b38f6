// added_tokens.c: the sorted array is walked like a trie: each byte of the text narrows the range that still
// fits.
#include "host/text/added_tokens.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    const struct added_token *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->length < y->length ? x->length : y->length);
    return order ? order : (x->length > y->length) - (x->length < y->length);
}

void added_set_sort(struct added_set *set)
{
    if (set->count == 0) return;
    qsort(set->token, set->count, sizeof *set->token, compare);
    for (size_t i = 0; i < set->count; i++) set->starts[(unsigned char)set->token[i].text[0]] = true;
}

/* The first of token[low..high), all equal in their first `depth` bytes and longer than that, whose byte at
 * `depth` is not below `byte`. */
static size_t lower_bound(const struct added_set *set, size_t low, size_t high, size_t depth, unsigned byte)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((unsigned char)set->token[middle].text[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static const struct added_token *longest_at(const struct added_set *set, const char *text, size_t length)
{
    const struct added_token *best = NULL;
    size_t low = 0, high = set->count;
    for (size_t depth = 0; depth < length && low < high; depth++) {
        unsigned byte = (unsigned char)text[depth];
        low = lower_bound(set, low, high, depth, byte);
        high = lower_bound(set, low, high, depth, byte + 1);
        // The one that ends here sorts before its extensions.
        if (low < high && set->token[low].length == depth + 1) best = &set->token[low++];
    }
    return best;
}

const struct added_token *added_set_find(const struct added_set *set, const char *text, size_t length,
                                         size_t from, size_t *at)
{
    for (size_t i = from; i < length && set->count; i++) {
        if (!set->starts[(unsigned char)text[i]]) continue;
        const struct added_token *found = longest_at(set, text + i, length - i);
        if (!found) continue;
        *at = i;
        return found;
    }
    return NULL;
}
