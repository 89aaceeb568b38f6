/* conversation.h: an engine with a prefix cache over the hash model (fake.h), and texts that grow turn by
 * turn: for tests of what is reused. Any wrong KV entry changes every token after it. */
#ifndef TESTS_ENGINE_CONVERSATION_H
#define TESTS_ENGINE_CONVERSATION_H

#include "fake.h"

#define POSITION_BYTES 10u // of KV, as the cache counts it

struct bed {
    struct fake *fake;
    struct engine *engine;
};
struct bed bed_open(bool mtp, uint64_t positions); // positions: the cache's budget
void bed_close(struct bed t);                      // every sequence must have been closed

struct text {
    int32_t id[FAKE_POSITIONS];
    uint32_t count;
};
/* Appends `count` tokens; variants below FAKE_EOS differ from the first one on. */
void text_say(struct text *t, uint32_t count, uint32_t variant);
/* Runs the text as a prompt and appends `more` tokens to it, checked against the model computed from the
 * whole text; returns how many of the prompt's were cached. */
uint32_t text_go_on(struct bed b, struct text *t, uint32_t more);

#endif
