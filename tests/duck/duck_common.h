/* duck_common.h: what the tests of a whole duck share: its shape, its key, a host for it. The tests are
 * duck_session_test.c, duck_weights_test.c and duck_steps_test.c; the duck runs on a simulated machine. */
#ifndef TESTS_DUCK_DUCK_COMMON_H
#define TESTS_DUCK_DUCK_COMMON_H

#include "tests/duck/sim.h"

enum { TEST_DUCK_MEMORY = 24 << 20 };

extern const struct siphash_key test_duck_key;
extern const struct duck_shape test_duck_shape; // three banks, the duck holds nothing of the last

/* A host that has not yet spoken; l: the layers it will load, NULL for none. */
struct mini_host test_duck_host(struct sim *s, uint32_t session, const struct layers *l);
/* The duck, its host (session 9) and the layers it is to load; end frees them. */
struct test_duck {
    struct layers *l;
    struct sim *s;
    struct mini_host h;
};
struct test_duck test_duck_make(uint64_t seed);
struct test_duck test_duck_loaded(uint64_t seed); // opened, with its weights
void test_duck_free(struct test_duck *t);
void test_duck_open_and_load(struct mini_host *h, const struct layers *l);
/* Sends a step, collects its result and compares it bit for bit with a duck core that saw no network. */
void test_duck_check_step(struct mini_host *h, const struct layers *l, uint32_t number, uint32_t bank,
                          uint32_t tokens, uint32_t top_k, enum wire_dtype activation,
                          enum wire_dtype result);

#endif
