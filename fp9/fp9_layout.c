/* fp9_layout.c: weights into and out of packed panels. */
#include "fp9/fp9_layout.h"

#include <string.h>

enum { WORDS = 8, PER_WORD = 4, LANE_INPUTS = WORDS * PER_WORD };

/* Where the four weights of a word stand (sign and body in the shape of MASK, shifted or rotated), in its
 * plain view (first two) and in its view xor-ed with the shifted signs. Both views together use all 32 bits;
 * the four sign places belong to both, and S makes the difference there. */
static const uint32_t MASK = 0x8ff00000u, PLAIN = 0x8ff08ff0u, BOTH = 0x80808080u;

static uint32_t rotate_left(uint32_t x, unsigned n)
{
    return x << n | x >> (32 - n);
}

static uint32_t raw(uint16_t code)
{
    return (uint32_t)(code >> 8 & 1) << 31 | (uint32_t)(code & 0xff) << 20;
}

static void encode_lane(const uint16_t code[LANE_INPUTS], uint32_t *signs, uint32_t word[WORDS])
{
    uint32_t other[WORDS], s = 0;
    for (unsigned j = 0; j < WORDS; j++) {
        const uint16_t *c = code + PER_WORD * j;
        word[j] = raw(c[0]) | raw(c[1]) >> 16;
        other[j] = raw(c[2]) >> 8 | rotate_left(raw(c[3]), 8);
        s |= ((word[j] ^ other[j]) & BOTH) >> j;
    }
    for (unsigned j = 0; j < WORDS; j++) word[j] |= (other[j] ^ s << j) & ~PLAIN;
    *signs = s;
}

static uint16_t decode(uint32_t word, uint32_t signs, unsigned input)
{
    unsigned j = input / PER_WORD;
    uint32_t v = word ^ signs << j, bits = 0;
    switch (input % PER_WORD) {
    case 0:
        bits = word;
        break;
    case 1:
        bits = word << 16;
        break;
    case 2:
        bits = v << 8;
        break;
    case 3:
        bits = rotate_left(v, 24);
        break;
    }
    bits &= MASK;
    return (uint16_t)(bits >> 31 << 8 | (bits >> 20 & 0xff));
}

size_t fp9_panel_bytes(enum fp9_format f, size_t inputs)
{
    size_t tiles = fp9__tiles(inputs), rest = tiles % FP9__STRIP_TILES;
    size_t bytes = fp9__strip_offset(f, tiles) + (rest ? fp9__head(f) + rest * FP9__TILE_BYTES : 0);
    return (bytes + 63) / 64 * 64;
}

size_t fp9_quad_bytes(enum fp9_format f, size_t inputs)
{
    size_t tiles = fp9__tiles(inputs), rest = tiles % FP9__STRIP_TILES;
    return FP9_QUAD * (fp9__strip_offset(f, tiles) + (rest ? fp9__head(f) + rest * FP9__TILE_BYTES : 0));
}

size_t fp9_block_bytes(enum fp9_format f)
{
    return fp9__group_bytes(f);
}

/* Words that the strip has: two per tile. */
static unsigned strip_words(size_t inputs, size_t strip)
{
    size_t tiles = fp9__tiles(inputs) - strip * FP9__STRIP_TILES;
    return 2 * (unsigned)(tiles < FP9__STRIP_TILES ? tiles : FP9__STRIP_TILES);
}

static uint32_t load(const uint8_t *strip, size_t vector, unsigned lane)
{
    uint32_t x;
    memcpy(&x, strip + vector * FP9__VECTOR + 4 * lane, sizeof x);
    return x;
}

static void put_lane(uint8_t *strip, unsigned words, unsigned lane, const uint16_t code[LANE_INPUTS])
{
    uint32_t signs, word[WORDS];
    encode_lane(code, &signs, word);
    memcpy(strip + 4 * lane, &signs, sizeof signs);
    for (unsigned j = 0; j < words; j++)
        memcpy(strip + (1 + j) * FP9__VECTOR + 4 * lane, &word[j], sizeof word[j]);
}

static uint16_t get(const uint8_t *strip, size_t input, unsigned lane)
{
    unsigned k = input % LANE_INPUTS;
    return decode(load(strip, 1 + k / PER_WORD, lane), load(strip, 0, lane), k);
}

static uint16_t get_e4m3(const uint8_t *strip, size_t input, unsigned lane)
{
    static const uint8_t place[PER_WORD] = {3, 1, 2, 0}; // byte of a lane
    unsigned k = input % LANE_INPUTS;
    uint16_t code = 0;
    fp9_from_e4m3(strip[k / PER_WORD * FP9__VECTOR + 4 * lane + place[k % PER_WORD]], &code);
    return code;
}

uint8_t *fp9_panel_strip(enum fp9_format f, uint8_t *panel, size_t strip)
{
    return panel + strip * fp9__whole_strip(f);
}

uint8_t *fp9_quad_strip(enum fp9_format f, uint8_t *quad, size_t inputs, size_t panel, size_t strip)
{
    return quad + fp9__quad_offset(f, inputs, panel, strip);
}

void fp9_strip_put(uint8_t *at, size_t inputs, size_t strip, const uint16_t code[256])
{
    unsigned words = strip_words(inputs, strip);
    for (unsigned lane = 0; lane < FP9_LANES; lane++) put_lane(at, words, lane, code + LANE_INPUTS * lane);
}

/* Codes as raw() has them; NaN is bit 0, which no code uses. */
void fp9_e4m3_table_make(struct fp9_e4m3_table *t)
{
    for (unsigned i = 0; i < 256; i++) {
        uint16_t code;
        t->raw[i] = fp9_from_e4m3((uint8_t)i, &code) ? 1 : raw(code);
    }
}

static int put_fp9(uint8_t *at, unsigned words, const struct fp9_e4m3_table *t, const uint8_t *rows,
                   size_t stride)
{
    uint32_t all = 0;
    for (unsigned lane = 0; lane < FP9_LANES; lane++) {
        const uint8_t *row = rows + lane * stride;
        uint32_t word[WORDS], other[WORDS], s = 0;
        for (unsigned j = 0; j < words; j++) { // as encode_lane()
            uint32_t a = t->raw[row[PER_WORD * j]], b = t->raw[row[PER_WORD * j + 1]];
            uint32_t c = t->raw[row[PER_WORD * j + 2]], d = t->raw[row[PER_WORD * j + 3]];
            all |= a | b | c | d;
            word[j] = a | b >> 16;
            other[j] = c >> 8 | rotate_left(d, 8);
            s |= ((word[j] ^ other[j]) & BOTH) >> j;
        }
        memcpy(at + 4 * lane, &s, sizeof s);
        for (unsigned j = 0; j < words; j++) {
            word[j] |= (other[j] ^ s << j) & ~PLAIN;
            memcpy(at + (1 + j) * FP9__VECTOR + 4 * lane, &word[j], sizeof word[j]);
        }
    }
    return all & 1 ? -1 : 0;
}

/* Four bytes at a time: which are NaN, which are subnormal and not zero is seen by what sums carry into each
 * one's bit 7. */
static int put_e4m3(uint8_t *at, unsigned words, const uint8_t *rows, size_t stride)
{
    const uint32_t carried = 0x80808080u;
    uint32_t nans = 0, subnormal[WORDS / 2] = {0};
    for (unsigned lane = 0; lane < FP9_LANES; lane++)
        for (unsigned j = 0; j < words; j++) {
            uint32_t x;
            memcpy(&x, rows + lane * stride + (size_t)PER_WORD * j, sizeof x);
            uint32_t body = x & ~carried;
            nans |= body + 0x01010101u;
            subnormal[j / 2] |= (body + 0x7f7f7f7fu) & ~(body + 0x78787878u);
            x = (x & 0xff) << 24 | (x & 0xff00) | (x & 0xff0000) | x >> 24;
            memcpy(at + (size_t)j * FP9__VECTOR + 4 * lane, &x, sizeof x);
        }
    int marks = 0;
    for (unsigned t = 0; t < WORDS / 2; t++) marks |= (subnormal[t] & carried) != 0 ? 1 << t : 0;
    return nans & carried ? -1 : marks;
}

int fp9_strip_put_e4m3(enum fp9_format f, uint8_t *at, size_t inputs, size_t strip,
                       const struct fp9_e4m3_table *t, const uint8_t *rows, size_t stride)
{
    const uint8_t *from = rows + strip * FP9_STRIP_INPUTS;
    unsigned words = strip_words(inputs, strip);
    return f == FP9_E4M3 ? put_e4m3(at, words, from, stride) : put_fp9(at, words, t, from, stride);
}

void fp9_panel_set(uint8_t *panel, size_t inputs, size_t input, unsigned lane, uint16_t code)
{
    size_t strip = input / FP9_STRIP_INPUTS;
    uint8_t *at = fp9_panel_strip(FP9_FP9, panel, strip);
    unsigned words = strip_words(inputs, strip);
    uint16_t codes[LANE_INPUTS] = {0};
    for (unsigned k = 0; k < PER_WORD * words; k++) codes[k] = get(at, k, lane);
    codes[input % LANE_INPUTS] = code;
    put_lane(at, words, lane, codes);
}

static uint16_t get_of(enum fp9_format f, const uint8_t *strip, size_t input, unsigned lane)
{
    return f == FP9_E4M3 ? get_e4m3(strip, input, lane) : get(strip, input, lane);
}

uint16_t fp9_panel_get(enum fp9_format f, const uint8_t *panel, size_t input, unsigned lane)
{
    return get_of(f, panel + input / FP9_STRIP_INPUTS * fp9__whole_strip(f), input, lane);
}

uint16_t fp9_quad_get(enum fp9_format f, const uint8_t *quad, size_t inputs, size_t panel, size_t input,
                      unsigned lane)
{
    return get_of(f, quad + fp9__quad_offset(f, inputs, panel, input / FP9_STRIP_INPUTS), input, lane);
}
