/* bench_compare.c: see bench_compare.h. Reads summary.json only; "-" stands for what was not measured. */
#include "host/cli/bench_compare.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "host/cli/input.h"

struct figure {
    const char *key, *label;
};

static const struct figure figures[] = {
    {"output_tokens", "output, tokens"}, {"ttft_ms", "TTFT, ms"},
    {"prefill_tok_s", "prefill, tok/s"}, {"tpot_ms", "TPOT, ms"},
    {"round_ms", "round, ms"},           {"tpot_p50_ms", "TPOT p50, ms"},
    {"tpot_p90_ms", "TPOT p90, ms"},     {"tpot_p99_ms", "TPOT p99, ms"},
    {"decode_tok_s", "decode, tok/s"},   {"draft_share", "rounds with draft"},
    {"mtp_accept", "MTP acceptance"},    {"pair_over_serial", "pair over serial"},
    {"overlap_gain", "overlap gain"},
};

static int read_cases(const char *dir, cJSON **root, const cJSON **cases, struct error *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/summary.json", dir);
    int rc = input_json(path, root, err);
    if (rc) return rc;
    *cases = cJSON_GetObjectItem(*root, "cases");
    if (cJSON_IsArray(*cases)) return 0;
    return error_set(err, -EINVAL, "%s: has no array \"cases\": bench did not write it", path);
}

static const char *name_of(const cJSON *item)
{
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(item, "name"));
    return name ? name : "";
}

static const cJSON *find_case(const cJSON *cases, const char *name)
{
    const cJSON *c;
    cJSON_ArrayForEach(c, cases) if (!strcmp(name_of(c), name)) return c;
    return NULL;
}

static void value(FILE *to, double x)
{
    int decimals = x >= 1000 ? 0 : x >= 100 ? 1 : x >= 10 ? 2 : 3;
    if (isfinite(x))
        fprintf(to, " %12.*f", decimals, x);
    else
        fprintf(to, " %12s", "-");
}

static void compare_case(FILE *to, const cJSON *a, const cJSON *b)
{
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        double x = cJSON_GetNumberValue(cJSON_GetObjectItem(a, figures[i].key));
        double y = cJSON_GetNumberValue(cJSON_GetObjectItem(b, figures[i].key));
        if (!isfinite(x) && !isfinite(y)) continue;
        fprintf(to, "%-20s %-18s", i ? "" : name_of(a), figures[i].label);
        value(to, x);
        value(to, y);
        if (isfinite(x) && isfinite(y) && x != 0)
            fprintf(to, " %7.3f\n", y / x);
        else
            fprintf(to, " %7s\n", "-");
    }
}

static void compare_cases(FILE *to, const char *dir_a, const cJSON *a, const char *dir_b, const cJSON *b)
{
    const cJSON *c;
    fprintf(to, "A: %s\nB: %s\n\n%-20s %-18s %12s %12s %7s\n", dir_a, dir_b, "case", "", "A", "B", "B / A");
    cJSON_ArrayForEach(c, a)
    {
        const cJSON *other = find_case(b, name_of(c));
        if (other)
            compare_case(to, c, other);
        else
            fprintf(to, "%-20s only in A\n", name_of(c));
    }
    cJSON_ArrayForEach(c, b) if (!find_case(a, name_of(c))) fprintf(to, "%-20s only in B\n", name_of(c));
}

int bench_compare(FILE *to, const char *a, const char *b, struct error *err)
{
    cJSON *root_a = NULL, *root_b = NULL;
    const cJSON *cases_a, *cases_b;
    int rc = read_cases(a, &root_a, &cases_a, err);
    if (!rc) rc = read_cases(b, &root_b, &cases_b, err);
    if (!rc) compare_cases(to, a, cases_a, b, cases_b);
    cJSON_Delete(root_a);
    cJSON_Delete(root_b);
    return rc;
}
