/* options.c: reads argv and the values of options. Order: presets, --config, the command line. */
#include "host/cli/options.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/flock/spec.h"
#include "host/http/http.h"
#include "host/plan/inputs.h"

static_assert(sizeof((struct options){0}.given) >= 64, "one entry per row of the table");

struct chunk { // of options->memory
    struct chunk *next;
    max_align_t data[];
};

void *options__keep(struct options *o, size_t bytes)
{
    struct chunk *c = calloc(1, sizeof *c + bytes);
    if (!c) return NULL;
    c->next = o->memory;
    o->memory = c;
    return c->data;
}

void options_free(struct options *o)
{
    for (struct chunk *c = o->memory, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(o->stop.item);
    free(o->cors.item);
    free(o->set.item);
    free(o->compare.item);
    free(o->ducks.item);
    free(o->bias);
    *o = (struct options){0};
}

const char *command_name(enum command command)
{
    for (size_t i = 0; i < options__command_count; i++) {
        if (options__commands[i].command == command) return options__commands[i].name;
    }
    return NULL;
}

const struct option_row *options__find(const char *name, size_t length, enum command command)
{
    for (size_t i = 0; i < options__rows; i++) {
        const struct option_row *r = &options__table[i];
        if (command != COMMAND_NONE && !((r->commands | r->also) & command)) continue;
        if (length == 1 ? r->letter == name[0]
                        : strlen(r->name) == length && !memcmp(r->name, name, length)) {
            return r;
        }
    }
    return NULL;
}

/* "-p" or "--temperature", as messages call it; `text` has 40 bytes. */
static const char *label_of(const struct option_row *row, char *text)
{
    if (row->letter) {
        snprintf(text, 40, "-%c", row->letter);
    } else {
        snprintf(text, 40, "--%s", row->name);
    }
    return text;
}

static void *field(struct options *o, const struct option_row *row)
{
    return (char *)o + row->offset;
}

/* Forgets what was stored: lists are emptied, the rest gets its preset. */
static void clear(struct options *o, const struct option_row *row)
{
    void *at = field(o, row);
    switch (row->kind) {
    case OPTION_FLAG:
        *(bool *)at = false;
        break;
    case OPTION_TEXT:
        *(const char **)at = NULL;
        break;
    case OPTION_CHOICE:
        *(int *)at = (int)row->preset;
        break;
    case OPTION_WHOLE:
        *(int64_t *)at = (int64_t)row->preset;
        break;
    case OPTION_NUMBER:
        *(double *)at = row->preset;
        break;
    case OPTION_SEED:
        *(uint64_t *)at = 0;
        o->seed_given = false;
        break;
    case OPTION_LIST:
        ((struct string_list *)at)->count = 0;
        break;
    case OPTION_BIAS:
        o->bias_count = 0;
        break;
    }
}

/* ---- values ---- */

/* Parses all of `text`; false: not a number. */
static bool read_number(const char *text, double *out)
{
    char *end;
    if (!*text || strchr(" \t\n", *text)) return false;
    *out = strtod(text, &end);
    return !*end && isfinite(*out);
}

static int set_number(void *at, const struct option_row *row, const char *value, struct error *err)
{
    char label[40];
    double x;
    bool whole = row->kind == OPTION_WHOLE;
    if (!read_number(value, &x) || (whole && x != floor(x))) {
        return error_set(err, -EINVAL, "%s takes a %s, not '%s'", label_of(row, label),
                         whole ? "whole number" : "number", value);
    }
    if (x < row->low || x > row->high) {
        return error_set(err, -ERANGE, "%s is %s, it can be %.10g to %.10g", label_of(row, label), value,
                         row->low, row->high);
    }
    if (whole) {
        *(int64_t *)at = (int64_t)x;
    } else {
        *(double *)at = x;
    }
    return 0;
}

static int set_choice(int *at, const struct option_row *row, const char *value, struct error *err)
{
    char label[40];
    int index = 0;
    for (const char *c = row->choices; c; index++) {
        const char *bar = strchr(c, '|');
        size_t length = bar ? (size_t)(bar - c) : strlen(c);
        if (strlen(value) == length && !memcmp(c, value, length)) {
            *at = index;
            return 0;
        }
        c = bar ? bar + 1 : NULL;
    }
    return error_set(err, -EINVAL, "%s is '%s', it can be %s", label_of(row, label), value, row->choices);
}

static int set_seed(struct options *o, const char *value, struct error *err)
{
    char *end;
    errno = 0;
    unsigned long long seed = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || errno) {
        return error_set(err, -EINVAL, "--seed is '%s', it can be a whole number from 0 to 2^64 - 1", value);
    }
    o->seed = seed;
    o->seed_given = true;
    return 0;
}

static int empty(const struct option_row *row, struct error *err)
{
    char label[40];
    return error_set(err, -EINVAL, "%s is empty", label_of(row, label));
}

static int add_text(struct string_list *list, const struct option_row *row, const char *value,
                    struct error *err)
{
    if (!*value) return empty(row, err);
    const char **item = realloc(list->item, (list->count + 1) * sizeof *item);
    if (!item) return error_set(err, -ENOMEM, "out of memory");
    list->item = item;
    item[list->count++] = value;
    return 0;
}

static int add_bias(struct options *o, const struct option_row *row, const char *value, struct error *err)
{
    const char *equal = strchr(value, '=');
    char id_text[16] = "";
    double id = -1, bias = 0;
    if (equal && (size_t)(equal - value) < sizeof id_text) memcpy(id_text, value, (size_t)(equal - value));
    if (!equal || !read_number(id_text, &id) || id != floor(id) || id < 0 || id > INT32_MAX ||
        !read_number(equal + 1, &bias)) {
        return error_set(err, -EINVAL, "--logit-bias takes ID=BIAS, as in 42=-5, not '%s'", value);
    }
    if (bias < row->low || bias > row->high) {
        return error_set(err, -ERANGE, "--logit-bias of token %.0f is %s, it can be %g to %g", id, equal + 1,
                         row->low, row->high);
    }
    struct logit_bias *grown = realloc(o->bias, (o->bias_count + 1) * sizeof *grown);
    if (!grown) return error_set(err, -ENOMEM, "out of memory");
    o->bias = grown;
    grown[o->bias_count++] = (struct logit_bias){(int32_t)id, (float)bias};
    return 0;
}

int options__set(struct options *o, const struct option_row *row, const char *value, struct error *err)
{
    void *at = field(o, row);
    switch (row->kind) {
    case OPTION_FLAG:
        *(bool *)at = true;
        return 0;
    case OPTION_TEXT:
        if (!*value && strcmp(row->argument, "TEXT") != 0) return empty(row, err);
        *(const char **)at = value;
        return 0;
    case OPTION_CHOICE:
        return set_choice(at, row, value, err);
    case OPTION_WHOLE:
    case OPTION_NUMBER:
        return set_number(at, row, value, err);
    case OPTION_SEED:
        return set_seed(o, value, err);
    case OPTION_LIST:
        return add_text(at, row, value, err);
    case OPTION_BIAS:
        return add_bias(o, row, value, err);
    }
    return 0;
}

/* ---- the command line ---- */

/* Marks `row` as given on the command line. What the configuration said about it, or about its alternatives,
 * no longer counts. */
static int claim(struct options *o, const struct option_row *row, struct error *err)
{
    for (size_t i = 0; i < options__rows; i++) {
        const struct option_row *other = &options__table[i];
        bool same = other->offset == row->offset;
        if (!same && (!row->source || other->source != row->source)) continue;
        if (o->given[i] == GIVEN_CONFIG) {
            clear(o, other);
            o->given[i] = GIVEN_NOT;
        } else if (o->given[i] == GIVEN_COMMAND_LINE && !same) {
            char a[40], b[40];
            return error_set(err, -EINVAL, "%s and %s are given, only one of them can be", label_of(other, a),
                             label_of(row, b));
        }
    }
    o->given[row - options__table] = GIVEN_COMMAND_LINE;
    return 0;
}

struct argument {
    const struct option_row *row;
    const char *value, *second; // NULL: a flag; no second word
};

/* Splits argv[*i] (and the word behind it) into option and value. */
static int next_argument(const struct options *o, int argc, char **argv, int *i, struct argument *out,
                         struct error *err)
{
    const char *word = argv[*i], *value = NULL;
    if (word[0] != '-' || !word[1]) return error_set(err, -EINVAL, "unexpected argument '%s'", word);
    const char *name = word + 1;
    size_t length = 1;
    if (word[1] == '-') {
        name = word + 2;
        const char *equal = strchr(name, '=');
        length = equal ? (size_t)(equal - name) : strlen(name);
        if (equal) value = equal + 1;
    } else if (word[2]) {
        value = word + 2; // -n5
    }
    const struct option_row *row =
        (word[1] == '-') == (length > 1) ? options__find(name, length, o->command) : NULL;
    if (!row) {
        bool elsewhere = length > 1 && options__find(name, length, COMMAND_NONE);
        return error_set(err, -EINVAL,
                         elsewhere ? "%s does not take the option '%.*s'" : "%s: unknown option '%.*s'",
                         command_name(o->command), (int)(name + length - word), word);
    }
    char label[40];
    if (!row->argument && value) {
        return error_set(err, -EINVAL, "%s takes no value, '%s' has one", label_of(row, label), word);
    }
    if (row->argument && !value) {
        if (*i + 1 >= argc) {
            return error_set(err, -EINVAL, "%s needs a value: %s", label_of(row, label), row->argument);
        }
        value = argv[++*i];
    }
    const char *second = NULL;
    if (row->words == 2) {
        if (*i + 1 >= argc) {
            return error_set(err, -EINVAL, "%s needs two values: %s", label_of(row, label), row->argument);
        }
        second = argv[++*i];
    }
    *out = (struct argument){row, value, second};
    return 0;
}

static int read_command(struct options *o, const char *word, struct error *err)
{
    for (size_t i = 0; i < options__command_count; i++) {
        if (!strcmp(options__commands[i].name, word)) {
            o->command = options__commands[i].command;
            return 0;
        }
    }
    return error_set(err, -EINVAL, word[0] == '-' ? "unknown option '%s'" : "unknown command '%s'", word);
}

static int need(const char *what, const char *command, struct error *err)
{
    return error_set(err, -EINVAL, "%s needs %s", command, what);
}

/* Whether the command line itself says it (a configuration serves several commands). */
static bool said(const struct options *o, const char *name)
{
    const struct option_row *row = options__find(name, strlen(name), o->command);
    return o->given[row - options__table] == GIVEN_COMMAND_LINE;
}

static int check_form(const struct options *o, struct error *err)
{
    static const char *const chat_only[] = {"think", "system"};
    for (size_t i = 0; (o->raw || o->tokens) && i < sizeof chat_only / sizeof chat_only[0]; i++) {
        if (!said(o, chat_only[i])) continue;
        return error_set(err, -EINVAL, "--%s belongs to the chat encoding, which %s leaves out", chat_only[i],
                         o->tokens ? "--tokens" : "--raw");
    }
    return 0;
}

static int check_serve(const struct options *o, struct error *err)
{
    if (o->kv_dir && o->kv_cache_mb == 0)
        return error_set(err, -EINVAL, "--kv-dir %s: KV comes back through --kv-cache, which is 0",
                         o->kv_dir);
    return http_check(o->listen ? o->listen : HTTP_LISTEN, o->cors.item, o->cors.count, err);
}

/* Keys and ranges are the planner's; what it sets here nobody reads. */
static int check_plan(const struct options *o, struct error *err)
{
    struct forecast_inputs unread = {0};
    int rc =
        o->hardware ? 0 : need("a description of the hardware: --hardware F", command_name(o->command), err);
    for (size_t i = 0; !rc && i < o->set.count; i++) rc = forecast_inputs_set(&unread, o->set.item[i], err);
    return rc;
}

/* What every command cannot do without, and options that contradict each other. */
static int check_whole(const struct options *o, struct error *err)
{
    const char *name = command_name(o->command);
    int rc = o->flock ? flock_spec_check_text(o->flock, err) : 0; // a wrong file is no wrong usage
    if (rc) return rc;
    switch (o->command) {
    case COMMAND_GENERATE:
        if (!o->prompt && !o->prompt_file && !o->tokens) {
            return need("a prompt: -p TEXT, --prompt-file F or --tokens F", name, err);
        }
        return check_form(o, err);
    case COMMAND_BENCH:
        if (o->compare.count != 0 && o->compare.count != 2) {
            return error_set(err, -EINVAL, "--compare takes two directories, it has %zu", o->compare.count);
        }
        if (o->synthetic && o->suite) return error_set(err, -EINVAL, "--synthetic has no --suite");
        if (!o->synthetic && (o->synthetic_layers || o->synthetic_experts || o->prompt_tokens))
            return error_set(err, -EINVAL, "%s needs --synthetic CONFIG",
                             o->synthetic_layers    ? "--synthetic-layers"
                             : o->synthetic_experts ? "--synthetic-experts"
                                                    : "--prompt-tokens");
        if (!o->csv && !o->compare.count) return need("a directory for its results: --csv DIR", name, err);
        break;
    case COMMAND_LOGITS:
        if (!o->tokens) return need("token ids: --tokens F", name, err);
        if (!o->out) return need("a file for its result: --out F", name, err);
        break;
    case COMMAND_EVAL:
        if (!o->tokens) return need("token ids: --tokens F", name, err);
        break;
    case COMMAND_FLOCK:
        if (!o->flock) return need("the flock's file: --flock FILE", name, err);
        break;
    case COMMAND_TOKENIZE:
        if (!o->prompt && !o->file && !o->decode) {
            return need("a text or ids: -p TEXT, --file F or --decode F", name, err);
        }
        if (o->decode && o->allow_special) {
            return error_set(err, -EINVAL,
                             "--allow-special is for text, --decode prints every special token");
        }
        break;
    case COMMAND_PLAN:
        return check_plan(o, err);
    case COMMAND_SERVE:
        return check_serve(o, err);
    default:
        break;
    }
    return 0;
}

/* flock's verb and the names behind it. */
static int read_ducks(struct options *o, int argc, char **argv, int *next, struct error *err)
{
    o->verb = argv[2];
    for (; *next < argc && argv[*next][0] != '-'; ++*next) {
        const char **item = realloc(o->ducks.item, (o->ducks.count + 1) * sizeof *item);
        if (!item) return error_set(err, -ENOMEM, "out of memory");
        o->ducks.item = item;
        item[o->ducks.count++] = argv[*next];
    }
    return 0;
}

static int check_verb(const struct options *o, struct error *err)
{
    static const char *const verbs[] = {"status", "doctor", "wake", "boot", "reboot", "off"};
    static const char all[] = "status, doctor, wake, boot, reboot or off";
    size_t i = 0;
    if (!o->verb) return error_set(err, -EINVAL, "flock needs what to do: %s", all);
    while (i < sizeof verbs / sizeof *verbs && strcmp(o->verb, verbs[i]) != 0) i++;
    if (i == sizeof verbs / sizeof *verbs)
        return error_set(err, -EINVAL, "flock cannot do '%s', it can do %s", o->verb, all);
    if ((strcmp(o->verb, "reboot") == 0 || strcmp(o->verb, "off") == 0) && o->ducks.count == 0)
        return error_set(err, -EINVAL, "flock %s needs the names of ducks", o->verb);
    return 0;
}

static int read_arguments(struct options *o, int argc, char **argv, struct error *err)
{
    struct argument a;
    bool has_verb = o->command == COMMAND_FLOCK && argc > 2 && argv[2][0] != '-';
    int first = has_verb ? 3 : 2;
    int rc = has_verb ? read_ducks(o, argc, argv, &first, err) : 0;
    if (rc) return rc;
    for (int i = first; i < argc; i++) { // first alone: help, and the configuration that the rest overrides
        rc = next_argument(o, argc, argv, &i, &a, err);
        if (rc) return rc;
        if (a.row->offset == offsetof(struct options, help)) o->help = true;
        if (a.row->offset == offsetof(struct options, config)) o->config = a.value;
    }
    if (o->help) return 0;
    if (o->config) {
        rc = options__config(o, o->config, err);
        if (rc) return rc;
    }
    if (o->command == COMMAND_FLOCK) {
        rc = check_verb(o, err);
        if (rc) return rc;
    }
    for (int i = first; i < argc; i++) {
        rc = next_argument(o, argc, argv, &i, &a, err);
        if (!rc) rc = claim(o, a.row, err);
        if (!rc) rc = options__set(o, a.row, a.value, err);
        if (!rc && a.second) rc = options__set(o, a.row, a.second, err);
        if (rc) return rc;
    }
    return check_whole(o, err);
}

/* duckd help [COMMAND] */
static enum options_end read_help(struct options *o, int argc, char **argv, struct error *err)
{
    o->help = true;
    if (argc > 2 && read_command(o, argv[2], err)) return OPTIONS_WRONG_USAGE;
    if (argc <= 3) return OPTIONS_OK;
    error_set(err, -EINVAL, "unexpected argument '%s'", argv[3]);
    return OPTIONS_WRONG_USAGE;
}

enum options_end options_parse(struct options *o, int argc, char **argv, struct error *err)
{
    *o = (struct options){0};
    for (size_t i = 0; i < options__rows; i++) clear(o, &options__table[i]);
    if (argc < 2) {
        error_set(err, -EINVAL, "no command given");
        return OPTIONS_WRONG_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        o->help = true;
        return OPTIONS_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        o->version = true;
        return OPTIONS_OK;
    }
    if (!strcmp(argv[1], "help")) return read_help(o, argc, argv, err);
    if (read_command(o, argv[1], err)) return OPTIONS_WRONG_USAGE;
    return read_arguments(o, argc, argv, err) ? OPTIONS_WRONG_USAGE : OPTIONS_OK;
}
