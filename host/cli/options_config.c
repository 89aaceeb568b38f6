/* options_config.c: `--config FILE`: a JSON object whose keys are option names without the dashes.
 *
 * Every value is turned into the text that the command line would have carried and goes through the same
 * checks. A key that only other commands take is read over, so that one file serves all of them; a key that
 * no command takes is refused by name. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "host/cli/input.h"
#include "host/cli/options.h"
#include "host/model/json.h"

#define EXACT_DOUBLE 9007199254740992.0 // 2^53: beyond it JSON numbers are not exact

/* The value as the command line would say it, in memory that *o owns; NULL: cannot be said. */
static const char *value_text(struct options *o, const cJSON *value)
{
    char number[40];
    const char *text = number;
    if (cJSON_IsString(value)) {
        text = value->valuestring;
    } else if (cJSON_IsNumber(value)) {
        double x = value->valuedouble;
        if (fabs(x) > EXACT_DOUBLE) return NULL;
        snprintf(number, sizeof number, x == floor(x) ? "%.0f" : "%.17g", x);
    } else if (cJSON_IsBool(value)) {
        text = cJSON_IsTrue(value) ? "1" : "0";
    } else {
        return NULL;
    }
    char *copy = options__keep(o, strlen(text) + 1);
    if (copy) strcpy(copy, text);
    return copy;
}

static int set_value(struct options *o, const struct option_row *row, const cJSON *value, struct error *err)
{
    if (row->kind == OPTION_FLAG) {
        if (!cJSON_IsBool(value))
            return error_set(err, -EINVAL, "%s is true or false, not %s", value->string, json_show(value).s);
        if (cJSON_IsTrue(value)) return options__set(o, row, NULL, err);
        return 0;
    }
    bool words = row->kind == OPTION_TEXT || row->kind == OPTION_LIST || row->kind == OPTION_BIAS;
    if (words && !cJSON_IsString(value)) {
        return error_set(err, -EINVAL, "%s takes a string, not %s", row->name, json_show(value).s);
    }
    // Only a choice of 0 and 1 can be said as false and true.
    const char *text = cJSON_IsBool(value) && row->kind != OPTION_CHOICE ? NULL : value_text(o, value);
    if (!text) {
        return error_set(err, -EINVAL,
                         "%s takes a string or a number (whole numbers beyond 2^53 as a string), not %s",
                         row->name, json_show(value).s);
    }
    return options__set(o, row, text, err);
}

/* "top_p" is as good as "top-p". */
static const struct option_row *find_key(const char *key, enum command command)
{
    char name[40];
    size_t length = strlen(key);
    if (length == 0 || length >= sizeof name) return NULL;
    for (size_t i = 0; i <= length; i++) name[i] = key[i] == '_' ? '-' : key[i];
    return options__find(name, length, command);
}

/* The alternatives of a source must not come together. */
static int check_source(const struct options *o, const struct option_row *row, struct error *err)
{
    for (size_t i = 0; i < options__rows; i++) {
        const struct option_row *other = &options__table[i];
        if (row->source && other->source == row->source && o->given[i] && other->offset != row->offset) {
            return error_set(err, -EINVAL, "both %s and %s are given, only one of them can be", other->name,
                             row->name);
        }
    }
    return 0;
}

static int read_key(struct options *o, const cJSON *value, struct error *err)
{
    const struct option_row *row = find_key(value->string, o->command);
    if (!row) {
        if (find_key(value->string, COMMAND_NONE)) return 0;
        return error_set(err, -EINVAL, "unknown key '%.60s'", value->string);
    }
    if (row->offset == offsetof(struct options, config) || row->offset == offsetof(struct options, help)) {
        return error_set(err, -EINVAL, "'%s' is for the command line alone", value->string);
    }
    int rc = check_source(o, row, err);
    if (rc) return rc;
    o->given[row - options__table] = GIVEN_CONFIG;
    if (cJSON_IsArray(value) && (row->kind == OPTION_LIST || row->kind == OPTION_BIAS)) {
        const cJSON *item;
        cJSON_ArrayForEach(item, value)
        {
            rc = set_value(o, row, item, err);
            if (rc) return rc;
        }
        return 0;
    }
    return set_value(o, row, value, err);
}

int options__config(struct options *o, const char *path, struct error *err)
{
    cJSON *root = NULL;
    int rc = input_json(path, &root, err);
    if (rc) return rc;
    if (!cJSON_IsObject(root)) {
        rc = error_set(err, -EINVAL, "%s: a configuration is one JSON object", path);
    }
    const cJSON *value;
    if (!rc) {
        cJSON_ArrayForEach(value, root)
        {
            rc = read_key(o, value, err);
            if (rc) {
                error_prefix(err, "%s", path);
                break;
            }
        }
    }
    cJSON_Delete(root);
    return rc;
}
