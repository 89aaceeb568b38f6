/* wire_test.c: SipHash against its authors' vectors, datagrams, keys, hashes, fragments, units. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "duck/wire.h"
#include "duck/wire_unit.h"
#include "tests/fp9/fp9_random.h"

/* Tags of 0, 1, ... 63 bytes 00 01 02 ... with key 00 01 .. 0f, as 64-bit numbers. */
static const uint64_t official[64] = {
    0x726fdb47dd0e0e31, 0x74f839c593dc67fd, 0x0d6c8009d9a94f5a, 0x85676696d7fb7e2d, 0xcf2794e0277187b7,
    0x18765564cd99a68d, 0xcbc9466e58fee3ce, 0xab0200f58b01d137, 0x93f5f5799a932462, 0x9e0082df0ba9e4b0,
    0x7a5dbbc594ddb9f3, 0xf4b32f46226bada7, 0x751e8fbc860ee5fb, 0x14ea5627c0843d90, 0xf723ca908e7af2ee,
    0xa129ca6149be45e5, 0x3f2acc7f57c29bdb, 0x699ae9f52cbe4794, 0x4bc1b3f0968dd39c, 0xbb6dc91da77961bd,
    0xbed65cf21aa2ee98, 0xd0f2cbb02e3b67c7, 0x93536795e3a33e88, 0xa80c038ccd5ccec8, 0xb8ad50c6f649af94,
    0xbce192de8a85b8ea, 0x17d835b85bbb15f3, 0x2f2e6163076bcfad, 0xde4daaaca71dc9a5, 0xa6a2506687956571,
    0xad87a3535c49ef28, 0x32d892fad841c342, 0x7127512f72f27cce, 0xa7f32346f95978e3, 0x12e0b01abb051238,
    0x15e034d40fa197ae, 0x314dffbe0815a3b4, 0x027990f029623981, 0xcadcd4e59ef40c4d, 0x9abfd8766a33735c,
    0x0e3ea96b5304a7d0, 0xad0c42d6fc585992, 0x187306c89bc215a9, 0xd4a60abcf3792b95, 0xf935451de4f21df2,
    0xa9538f0419755787, 0xdb9acddff56ca510, 0xd06c98cd5c0975eb, 0xe612a3cb9ecba951, 0xc766e62cfcadaf96,
    0xee64435a9752fe72, 0xa192d576b245165a, 0x0a8787bf8ecb74b2, 0x81b3e73d20b49b6f, 0x7fa8220ba3b2ecea,
    0x245731c13ca42499, 0xb78dbfaf3a8d83bd, 0xea1ad565322a1a0b, 0x60e61c23a3795013, 0x6606d7e446282b93,
    0x6ca4ecb15c5f91e1, 0x9f626da15c9625f3, 0xe51b38608ef25f57, 0x958a324ceb064572,
};

static void siphash_gives_the_official_vectors(void **state)
{
    (void)state;
    uint8_t key[16], text[64];
    for (unsigned i = 0; i < 16; i++) key[i] = (uint8_t)i;
    for (unsigned i = 0; i < 64; i++) text[i] = (uint8_t)i;
    struct siphash_key k = siphash_key(key);
    for (unsigned n = 0; n < 64; n++) {
        assert_int_equal(siphash(&k, text, n), official[n]);
        for (unsigned words = 0; words <= n / 8; words++) { // in two pieces
            struct siphash s;
            siphash_begin(&s, &k);
            siphash_words(&s, text, words);
            assert_int_equal(siphash_end(&s, text + 8 * words, n - 8 * words), official[n]);
        }
    }
}

static const struct siphash_key key_a = {1, 2}, key_b = {1, 3};

static uint32_t seal_something(uint8_t *d, uint16_t length)
{
    for (unsigned i = 0; i < length; i++) d[WIRE_HEADER + i] = (uint8_t)(i * 7);
    return wire_seal(d,
                     (struct wire_header){.type = WIRE_STEP,
                                          .length = length,
                                          .session = 5,
                                          .sequence = 9,
                                          .fragment = 1,
                                          .fragments = 3,
                                          .source = WIRE_HOST},
                     &key_a);
}

static void a_sealed_datagram_is_read_back(void **state)
{
    (void)state;
    static uint8_t d[WIRE_DATAGRAM_MAX];
    static const uint16_t lengths[] = {0, 1, 7, 8, 9, 1440, 8928};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct wire_header h;
        uint32_t bytes = seal_something(d, lengths[i]);
        assert_int_equal(bytes, 32u + lengths[i]);
        assert_int_equal(wire_parse(d, bytes, &h), WIRE_OK);
        assert_int_equal(h.sequence, 9);
        assert_int_equal(h.fragments, 3);
        assert_int_equal(wire_check_tag(d, &key_a), WIRE_OK);
        assert_int_equal(wire_check_tag(d, &key_b), WIRE_WRONG_TAG);
    }
}

static void every_flipped_bit_is_noticed(void **state)
{
    (void)state;
    uint8_t d[WIRE_HEADER + 40];
    uint32_t bytes = seal_something(d, 40);
    for (uint32_t bit = 0; bit < 8 * bytes; bit++) {
        struct wire_header h;
        d[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_true(wire_parse(d, bytes, &h) != WIRE_OK || wire_check_tag(d, &key_a) == WIRE_WRONG_TAG);
        d[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(wire_check_tag(d, &key_a), WIRE_OK);
}

static void malformed_datagrams_are_told_apart(void **state)
{
    (void)state;
    uint8_t d[WIRE_HEADER + 40];
    struct wire_header h;
    uint32_t bytes = seal_something(d, 40);
    for (uint32_t n = 0; n < bytes; n++) assert_int_equal(wire_parse(d, n, &h), WIRE_MALFORMED); // cut short
    d[4] = WIRE_VERSION + 1;
    assert_int_equal(wire_parse(d, bytes, &h), WIRE_OTHER_VERSION);
    assert_int_equal(h.type, WIRE_STEP);
    d[4] = WIRE_VERSION;
    d[5] = WIRE_TYPES;
    assert_int_equal(wire_parse(d, bytes, &h), WIRE_MALFORMED);
    d[5] = WIRE_STEP;
    d[16] = 3; // fragment 3 of 3
    assert_int_equal(wire_parse(d, bytes, &h), WIRE_MALFORMED);
}

static void session_keys_depend_on_key_and_nonce(void **state)
{
    (void)state;
    uint8_t nonce[WIRE_NONCE] = {0};
    struct siphash_key first = wire_session_key(&key_a, nonce), other = wire_session_key(&key_b, nonce);
    assert_true(first.k0 != other.k0 && first.k1 != other.k1 && first.k0 != first.k1);
    for (unsigned i = 0; i < WIRE_NONCE; i++) {
        nonce[i] = 1;
        other = wire_session_key(&key_a, nonce);
        assert_true(first.k0 != other.k0 && first.k1 != other.k1);
        nonce[i] = 0;
    }
}

static void object_hash_is_that_of_its_pieces(void **state)
{
    (void)state;
    enum { BYTES = 3 * WIRE_HASH_PIECE + 777 };
    uint8_t *b = malloc(BYTES);
    uint64_t seed = 4, pieces[4];
    for (size_t i = 0; i < BYTES; i++) b[i] = (uint8_t)random_next(&seed);
    for (size_t i = 0; i < 4; i++)
        pieces[i] = wire_piece_hash(b + i * WIRE_HASH_PIECE, i < 3 ? WIRE_HASH_PIECE : 777);
    uint64_t whole = wire_object_hash(b, BYTES);
    assert_int_equal(whole, wire_hash_of_pieces(pieces, 4));
    b[2 * WIRE_HASH_PIECE] ^= 1;
    assert_true(whole != wire_object_hash(b, BYTES));
    assert_true(wire_object_hash(b, 0) != 0);
    free(b);
}

/* Every value of every result is in exactly one fragment, none larger than the payload. */
static void result_fragments_cover_everything_once(void **state)
{
    (void)state;
    static const uint32_t hidden[] = {8, 64, 256, 360, 368, 720, 2048, 7168}, tokens[] = {1, 2, 5, 64},
                          subtrees[] = {1, 3}, payloads[] = {WIRE_PAYLOAD, WIRE_PAYLOAD_JUMBO};
    for (unsigned i = 0; i < 8 * 4 * 2 * 2 * 2; i++) {
        uint32_t h = hidden[i % 8], t = tokens[i / 8 % 4], s = subtrees[i / 32 % 2],
                 payload = payloads[i / 64 % 2];
        enum wire_dtype dtype = i / 128 ? WIRE_BF16 : WIRE_F32;
        struct wire_result_plan p = wire_result_plan(h, t, s, dtype, payload);
        uint8_t *seen = calloc((size_t)h * t * s, 1);
        uint32_t last_row = 0;
        assert_true(p.fragments > 0);
        for (uint32_t f = 0; f < p.fragments; f++) {
            struct wire_result_part part = wire_result_part(&p, f);
            assert_true(part.tokens * part.rows * (dtype == WIRE_F32 ? 4 : 2) <= payload);
            assert_true(part.first_row >= last_row); // row blocks come one after the other
            last_row = part.first_row;
            for (uint32_t a = 0; a < part.tokens; a++)
                for (uint32_t r = 0; r < part.rows; r++)
                    seen[((size_t)part.subtree * t + part.first_token + a) * h + part.first_row + r]++;
        }
        for (size_t k = 0; k < (size_t)h * t * s; k++) assert_int_equal(seen[k], 1);
        free(seen);
    }
    assert_int_equal(wire_result_plan(7168, 1, 1, WIRE_F32, WIRE_PAYLOAD).fragments, 20);
    assert_int_equal(wire_result_plan(7168, 60000, 1, WIRE_F32, WIRE_PAYLOAD).fragments, 0); // too many
    assert_int_equal(wire_result_plan(7168, 1, 0, WIRE_F32, WIRE_PAYLOAD).fragments, 0);
}

static void step_layout_refuses_what_does_not_fit(void **state)
{
    (void)state;
    struct wire_step_layout l = wire_step_layout(7168, 2, 8, WIRE_FP8, WIRE_PAYLOAD);
    assert_int_equal(l.weights, 32 + 64);
    assert_int_equal(l.scales, 32 + 128);
    assert_int_equal(l.x, 32 + 128 + 2 * 56 * 4);
    assert_int_equal(l.bytes, l.x + 2 * 7168);
    assert_int_equal(wire_step_layout(UINT32_MAX, UINT32_MAX, UINT32_MAX, WIRE_F32, WIRE_PAYLOAD).bytes, 0);
    assert_int_equal(wire_step_layout(7168, 4000, 8, WIRE_F32, WIRE_PAYLOAD).bytes, 0);
}

static void payloads_of_mtus(void **state)
{
    (void)state;
    assert_int_equal(wire_payload_of_mtu(1500), WIRE_PAYLOAD);
    assert_int_equal(wire_payload_of_mtu(9000), WIRE_PAYLOAD_JUMBO);
    assert_int_equal(wire_payload_of_mtu(65536), WIRE_PAYLOAD_JUMBO);
    assert_int_equal(wire_payload_of_mtu(10), 0);
}

static void units_are_numbered_without_gaps(void **state)
{
    (void)state;
    const struct duck_bank_shape banks[] = {{0, 1, 64}, {5, 1, 32}, {5, 2, 16}};
    const struct duck_run runs[] = {{0, 0, 3}, {0, 5, 1}, {2, 1, 1}};
    const struct duck_shape s = {.hidden = 16, .banks = 3, .bank = banks, .runs = 3, .run = runs};
    assert_int_equal(wire_units(&s), 3 + 3 + 21);
    for (uint64_t u = 0; u < wire_units(&s); u++)
        assert_int_equal(wire_unit_number(&s, wire_unit_find(&s, u)), u);
    struct wire_unit_id id = wire_unit_find(&s, 6 + 3 * 6 + 2);
    assert_int_equal(id.run, 2);
    assert_int_equal(id.expert, 6);
    assert_int_equal(id.which, DUCK_DOWN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(siphash_gives_the_official_vectors),
        cmocka_unit_test(a_sealed_datagram_is_read_back),
        cmocka_unit_test(every_flipped_bit_is_noticed),
        cmocka_unit_test(malformed_datagrams_are_told_apart),
        cmocka_unit_test(session_keys_depend_on_key_and_nonce),
        cmocka_unit_test(object_hash_is_that_of_its_pieces),
        cmocka_unit_test(result_fragments_cover_everything_once),
        cmocka_unit_test(step_layout_refuses_what_does_not_fit),
        cmocka_unit_test(payloads_of_mtus),
        cmocka_unit_test(units_are_numbered_without_gaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
