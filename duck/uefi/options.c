/* options.c: parsing the words a duck is started with. */
#include "duck/uefi/options.h"

#include <string.h>

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static int read_key(struct options *o, const char *v, uint32_t n)
{
    if (n != 32) return -1;
    for (uint32_t i = 0; i < 16; i++) {
        int high = hex_digit(v[2 * i]), low = hex_digit(v[2 * i + 1]);
        if (high < 0 || low < 0) return -1;
        o->key[i] = (uint8_t)(high << 4 | low);
    }
    o->has_key = 1;
    return 0;
}

static int read_number(const char **v, const char *end, uint32_t most, uint32_t *out)
{
    uint64_t n = 0;
    const char *start = *v;
    for (; *v < end && **v >= '0' && **v <= '9' && n <= most; ++*v) n = n * 10 + (uint32_t)(**v - '0');
    *out = (uint32_t)n;
    return *v == start || n > most ? -1 : 0;
}

static int read_address(struct options *o, const char *v, uint32_t n)
{
    const char *end = v + n;
    uint32_t address = 0, part;
    for (int i = 0; i < 4; i++) {
        if (i && (v == end || *v++ != '.')) return -1;
        if (read_number(&v, end, 255, &part)) return -1;
        address = address << 8 | part;
    }
    if (v != end) return -1;
    o->address = address;
    return 0;
}

static int read_name(struct options *o, const char *v, uint32_t n)
{
    if (n == 0 || n >= sizeof o->name) return -1;
    memcpy(o->name, v, n);
    o->name[n] = 0;
    return 0;
}

static int read_spin(struct options *o, const char *v, uint32_t n)
{
    const char *end = v + n;
    return read_number(&v, end, 1000000000, &o->spin_us) || v != end ? -1 : 0;
}

static int read_watchdog(struct options *o, const char *v, uint32_t n)
{
    const char *end = v + n;
    return read_number(&v, end, 600, &o->watchdog_s) || v != end ? -1 : 0;
}

static int read_hang(struct options *o, const char *v, uint32_t n)
{
    const char *end = v + n;
    return read_number(&v, end, 1000000, &o->hang_after_s) || v != end ? -1 : 0;
}

static int read_fault(struct options *o, const char *v, uint32_t n)
{
    const char *end = v + n;
    return read_number(&v, end, 1000000, &o->fault_after_s) || v != end ? -1 : 0;
}

static int read_word(struct options *o, const char *w, uint32_t n)
{
    static const struct {
        const char *name;
        int (*read)(struct options *o, const char *v, uint32_t n);
    } known[] = {{"key=", read_key},
                 {"address=", read_address},
                 {"name=", read_name},
                 {"spin_us=", read_spin},
                 {"watchdog_s=", read_watchdog},
                 {"hang_after_s=", read_hang},
                 {"fault_after_s=", read_fault}};
    for (uint32_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t length = 0;
        while (known[i].name[length]) length++;
        if (n >= length && memcmp(w, known[i].name, length) == 0)
            return known[i].read(o, w + length, n - length);
    }
    return -1;
}

void options_read(struct options *o, const char *text)
{
    *o = (struct options){.watchdog_s = OPTIONS_WATCHDOG_S};
    while (*text) {
        uint32_t n = 0;
        while (*text == ' ' || *text == '\t' || *text == '\r' || *text == '\n') text++;
        while (text[n] && text[n] != ' ' && text[n] != '\t' && text[n] != '\r' && text[n] != '\n') n++;
        if (n && read_word(o, text, n) && !o->bad[0])
            for (uint32_t i = 0; i < n && i + 1 < sizeof o->bad; i++)
                o->bad[i] = text[i] > ' ' && text[i] <= '~' ? text[i] : '?'; // it will be shown
        text += n;
    }
}
