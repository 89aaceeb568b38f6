/* options.h: the command line, once: one table says every option's name, argument, range, default and help.
 *
 * The table (options_table.c) is used for parsing, for `--config FILE` and for --help, so that the three
 * cannot disagree. Values are checked where they are read: name, value and range in one line. Owns every
 * string it hands out until options_free(). Never opens anything but the configuration file. */
#ifndef DUCKD_HOST_CLI_OPTIONS_H
#define DUCKD_HOST_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "host/engine/engine.h"

enum command {
    COMMAND_NONE = 0,
    COMMAND_FLOCK = 1 << 10,
    COMMAND_GENERATE = 1 << 0,
    COMMAND_CHAT = 1 << 1,
    COMMAND_BENCH = 1 << 2,
    COMMAND_LOGITS = 1 << 3,
    COMMAND_EVAL = 1 << 4,
    COMMAND_TOKENIZE = 1 << 5,
    COMMAND_SERVE = 1 << 8,
    COMMAND_PLAN = 1 << 6,
    COMMAND_DOCTOR = 1 << 7,
};

enum option_origin { GIVEN_NOT, GIVEN_CONFIG, GIVEN_COMMAND_LINE };

struct string_list {
    const char **item;
    size_t count;
};

/* Everything a command can be told. Numbers have their defaults when not given; texts are NULL. */
struct options {
    enum command command;
    bool help, version;

    // where the work is done
    const char *model, *flock, *config;
    int backend, mtp, wire_activation, wire_result, kv_dtype,
        gpu_shared;    // index into the option's choices; -1: not given
    int expert_format; // likewise: enum fp9_format
    int64_t threads;   // 0: one per CPU
    bool verbose, quiet;

    // what is asked
    const char *prompt, *prompt_file, *tokens, *system, *file, *decode;
    bool think, raw, allow_special;

    // how the answer is made
    int64_t n; // 0: until the model stops
    double temperature, top_p, min_p, frequency_penalty, presence_penalty, repetition_penalty;
    int64_t top_k;
    uint64_t seed;
    bool seed_given, ignore_eos;
    struct string_list stop;
    struct logit_bias *bias;
    size_t bias_count;

    // where it goes
    bool json;
    const char *csv, *out, *dump, *suite, *trace;
    int64_t last; // 0: not given
    bool no_history;

    // who may ask, and how much at once
    const char *listen, *api_keys, *model_name, *kv_dir;
    struct string_list cors;
    int64_t lanes, queue, connections, max_body_mb, request_timeout_s, idle_timeout_s, drain_timeout_s,
        kv_cache_mb, kv_dir_mb;

    const char *root;         // doctor's
    const char *verb;         // flock's: status, doctor ..
    struct string_list ducks; // flock's, by name; none: all
    int64_t wait_s;           // flock boot's

    // what is planned
    const char *hardware, *beside;
    int scheme;
    int drafts; // not planned: with --mtp 1
    struct string_list set;

    struct string_list compare;                                 // none, or two directories
    const char *synthetic;                                      // bench: a config.json
    int64_t synthetic_layers, synthetic_experts, prompt_tokens; // 0: not given

    unsigned char given[128]; // per row of the table: enum option_origin
    void *memory;             // of the strings above that do not live in argv
};

/* How reading the command line ended. */
enum options_end { OPTIONS_OK, OPTIONS_WRONG_USAGE };

/* argv as main() has it. On WRONG_USAGE `err` holds one line; o->command says whose help to point to. */
enum options_end options_parse(struct options *o, int argc, char **argv, struct error *err);
void options_free(struct options *o);

/* `duckd --help` (COMMAND_NONE) or `duckd CMD --help`. */
void options_help(FILE *to, enum command command);
const char *command_name(enum command command); // NULL: COMMAND_NONE

/* ---- the table and what parser, configuration reader and help share ---- */

enum option_kind {
    OPTION_FLAG,   // bool
    OPTION_TEXT,   // const char *
    OPTION_CHOICE, // int, index into `choices`
    OPTION_WHOLE,  // int64_t in [low, high]
    OPTION_NUMBER, // double in [low, high]
    OPTION_SEED,   // uint64_t; also sets seed_given
    OPTION_LIST,   // struct string_list, may be repeated
    OPTION_BIAS,   // ID=BIAS, may be repeated
};

struct option_row {
    const char *heading; // starts a group of options in the help; NULL: goes on
    char letter;         // 0: none
    const char *name;    // NULL: only the letter
    enum option_kind kind;
    unsigned commands;    // that take it
    unsigned also;        // commands that take it without having a use for it, and do not list it
    size_t offset;        // of the value in struct options
    const char *argument; // as the help calls it; NULL: a flag
    unsigned words;       // it takes: 0 means 1; 2: of an OPTION_LIST
    const char *choices;  // "a|b|c"
    double low, high;
    double preset;    // value when not given, for numbers and choices
    char source;      // options of one letter say where one thing comes from: only one may be given
    const char *help; // its default included
};
extern const struct option_row options__table[];
extern const size_t options__rows;

struct command_row {
    enum command command;
    const char *name, *usage, *brief;
    const char *text; // for `duckd CMD --help`
};
extern const struct command_row options__commands[];
extern const size_t options__command_count;

/* By long name, or by letter when length is 1; among the rows that `command` takes (COMMAND_NONE: any). */
const struct option_row *options__find(const char *name, size_t length, enum command command);
/* Stores `value` (NULL for a flag). */
int options__set(struct options *o, const struct option_row *row, const char *value, struct error *err);
/* Reads a configuration file into *o; values land in o->memory. */
int options__config(struct options *o, const char *path, struct error *err);
void *options__keep(struct options *o, size_t bytes); // freed with *o; NULL: no memory

#endif
