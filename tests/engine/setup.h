/* setup.h: an engine over the hash model (fake.h), generations that note what they are told, and the plain
 * loop "whole text in, sample, append" that every one of them is compared with. */
#ifndef TESTS_ENGINE_SETUP_H
#define TESTS_ENGINE_SETUP_H

#include "fake.h"

struct setup {
    struct fake *fake;
    struct engine *engine;
};
struct setup setup_open(uint32_t lanes, uint32_t chunk, bool mtp, enum mtp_verify verify);
void setup_close(struct setup t); // every sequence must have been closed

/* With and without drafts, verified in one job and on two lanes. */
#define SETUP_MODES 4u
struct setup_mode {
    bool mtp;
    enum mtp_verify verify;
};
extern const struct setup_mode setup_modes[SETUP_MODES];

/* What a generation said; the callbacks check what must hold for every token. */
struct collected {
    int32_t id[FAKE_POSITIONS];
    uint32_t count, calls, stop_after; // stop_after: on_token says false at this many
    uint32_t accepted, prefilled;
    bool stop_seen;
    struct generation *cancel_at_2, *free_at_2;
};
struct generation *setup_start(struct setup t, const int32_t *prompt, uint32_t count, uint32_t max,
                               const struct sampling *s, bool ignore_eos, struct collected *c);
void setup_run(struct setup t); // until nothing is left to do

struct sampling sampling_kind(int kind); // 0: greedy, 1: temperature, more: everything at once
void make_prompt(int32_t *ids, uint32_t count, uint32_t variant);

/* The plain loop. Returns how many tokens were made into out. */
uint32_t plain_loop(const int32_t *prompt, uint32_t count, uint32_t max, bool ignore_eos,
                    const struct sampling *sampling, int32_t *out);
/* All KV that was written in the end is what the whole text gives. */
void expect_kv(const struct fake_seq *s, const int32_t *prompt, uint32_t count, const int32_t *more,
               uint32_t n);

#endif
