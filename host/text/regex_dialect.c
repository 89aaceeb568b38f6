/* regex_dialect.c: one pass over the pattern; everything that is not known to mean the same is refused.
 *
 * Differences that matter: \s (PCRE2 adds U+180E, which is no white space), script names (PCRE2 means script
 * extensions), {n,m}+ and {n}? (not possessive, not lazy in Ruby syntax), nested classes and &&, ^ and $
 * (always per line in Ruby syntax), \w and \b (other sets), \h and \v (other meanings). */
#include "host/text/regex_dialect.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// Unicode's White_Space property, as members of a class.
#define WHITE_SPACE                                                                                          \
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

struct rewriter {
    const char *pattern, *at; // `at` moves through `pattern`
    char *out;
    size_t written;
    struct error *err;
};

/* The longest replacement of one construct is below this; out holds so much per byte of the pattern. */
#define LONGEST_REPLACEMENT (sizeof WHITE_SPACE + 8)

static void put(struct rewriter *r, const char *text, size_t length)
{
    memcpy(r->out + r->written, text, length);
    r->written += length;
}

static void put_text(struct rewriter *r, const char *text)
{
    put(r, text, strlen(text));
}

/* Copies `length` bytes of the pattern as they are. */
static void keep(struct rewriter *r, size_t length)
{
    put(r, r->at, length);
    r->at += length;
}

static int refuse(struct rewriter *r, const char *what)
{
    return error_set(r->err, -EINVAL, "regular expression: %s is not supported, at byte %zu of '%.200s'",
                     what, (size_t)(r->at - r->pattern), r->pattern);
}

/* \p{L}, \P{Nd}, \p{Han}: general categories mean the same; a longer name is a script. */
static int rewrite_property(struct rewriter *r)
{
    if (r->at[2] != '{') return refuse(r, "\\p without {name}");
    size_t length = strspn(r->at + 3, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz");
    if (length == 0 || length > 40 || r->at[3 + length] != '}') return refuse(r, "this \\p{...}");
    const char *name = r->at + 3;
    put(r, r->at, 3);
    if (length > 2) put_text(r, "sc:");
    put(r, name, length);
    put_text(r, "}");
    r->at += length + 4;
    return 0;
}

/* \xHH, \x{H...}, \uHHHH -> \x{...} */
static int rewrite_code(struct rewriter *r)
{
    static const char hex[] = "0123456789abcdefABCDEF";
    const char *digits = r->at + 2;
    size_t count = strspn(digits, hex), length;
    if (r->at[1] == 'x' && digits[0] == '{') {
        count = strspn(++digits, hex);
        if (count == 0 || count > 6 || digits[count] != '}') return refuse(r, "this \\x{...}");
        length = count + 4;
    } else {
        size_t wanted = r->at[1] == 'x' ? 2 : 4;
        if (count < wanted) return refuse(r, "this \\x or \\u");
        count = wanted;
        length = wanted + 2;
    }
    put_text(r, "\\x{");
    put(r, digits, count);
    put_text(r, "}");
    r->at += length;
    return 0;
}

static int rewrite_escape(struct rewriter *r, bool in_class)
{
    unsigned char c = (unsigned char)r->at[1];
    switch (c) {
    case 'p':
    case 'P':
        return rewrite_property(r);
    case 'x':
    case 'u':
        return rewrite_code(r);
    case 's':
        put_text(r, in_class ? WHITE_SPACE : "[" WHITE_SPACE "]");
        r->at += 2;
        return 0;
    case 'S':
        if (in_class) return refuse(r, "\\S inside [...]");
        put_text(r, "[^" WHITE_SPACE "]");
        r->at += 2;
        return 0;
    case 'd':
    case 'D':
        put_text(r, c == 'd' ? "\\p{Nd}" : "\\P{Nd}");
        r->at += 2;
        return 0;
    case 'r':
    case 'n':
    case 't':
    case 'f':
        keep(r, 2);
        return 0;
    default:
        if (!ispunct(c)) return refuse(r, "this escape");
        keep(r, 2);
        return 0;
    }
}

static int rewrite_class(struct rewriter *r)
{
    keep(r, r->at[1] == '^' ? 2 : 1);
    if (*r->at == ']') return refuse(r, "an unescaped ] as first member of [...]");
    while (*r->at != ']') {
        int rc = 0;
        if (*r->at == '\0') return refuse(r, "[ without ]");
        if (*r->at == '[') return refuse(r, "an unescaped [ inside [...]");
        if (r->at[0] == '&' && r->at[1] == '&') return refuse(r, "&& inside [...]");
        if (*r->at == '\\')
            rc = rewrite_escape(r, true);
        else
            keep(r, 1);
        if (rc) return rc;
    }
    keep(r, 1);
    return 0;
}

static int rewrite_group(struct rewriter *r)
{
    static const char *const known[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
    if (r->at[1] != '?' && r->at[1] != '*') {
        keep(r, 1);
        return 0;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t length = strlen(known[i]);
        if (strncmp(r->at, known[i], length) != 0) continue;
        keep(r, length);
        return 0;
    }
    return refuse(r, "this kind of group");
}

static int rewrite_interval(struct rewriter *r)
{
    size_t length = 1 + strspn(r->at + 1, "0123456789");
    if (length == 1) return refuse(r, "a { that is no {n}, {n,} or {n,m}");
    if (r->at[length] == ',') length += 1 + strspn(r->at + length + 1, "0123456789");
    if (r->at[length] != '}') return refuse(r, "a { that is no {n}, {n,} or {n,m}");
    length++;
    if (r->at[length] == '+' || r->at[length] == '?') return refuse(r, "+ or ? after {n,m}");
    keep(r, length);
    return 0;
}

int regex_to_pcre2(const char *pattern, char **out, struct error *err)
{
    size_t capacity = (strlen(pattern) + 1) * LONGEST_REPLACEMENT;
    struct rewriter r = {pattern, pattern, malloc(capacity), 0, err};
    *out = NULL;
    if (!r.out) return error_set(err, -ENOMEM, "out of memory for a regular expression");
    int rc = 0;
    while (*r.at && !rc) {
        switch (*r.at) {
        case '\\':
            rc = rewrite_escape(&r, false);
            break;
        case '[':
            rc = rewrite_class(&r);
            break;
        case '(':
            rc = rewrite_group(&r);
            break;
        case '{':
            rc = rewrite_interval(&r);
            break;
        case '^':
        case '$':
            rc = refuse(&r, "^ or $");
            break;
        default:
            keep(&r, 1);
            break;
        }
    }
    if (rc) {
        free(r.out);
        return rc;
    }
    r.out[r.written] = '\0';
    *out = r.out;
    return 0;
}
