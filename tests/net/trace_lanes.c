/* trace_lanes.c: what lanes.sh wants to see in a trace: rows of ports and ducks whose spans follow each
 * other, and two lanes at the flock at once, both of a pair of tokens and of two chunks of a prompt. */
#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LANE = 1000, PORT = 4000, DUCK = 5000 };

struct span {
    double from, to;
    int row, rows;
    char name[24];
};

static struct span *spans;
static size_t count;

static void read_spans(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) exit(1);
    fseek(f, 0, SEEK_END);
    long bytes = ftell(f);
    rewind(f);
    char *text = malloc((size_t)bytes);
    if (!text || fread(text, 1, (size_t)bytes, f) != (size_t)bytes) exit(1);
    fclose(f);
    cJSON *root = cJSON_ParseWithLength(text, (size_t)bytes),
          *events = cJSON_GetObjectItem(root, "traceEvents"), *e;
    spans = calloc((size_t)cJSON_GetArraySize(events) + 1, sizeof *spans);
    if (!spans) exit(1);
    cJSON_ArrayForEach(e, events)
    {
        if (strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(e, "ph")), "X") != 0) continue;
        double from = cJSON_GetObjectItem(e, "ts")->valuedouble;
        const cJSON *rows = cJSON_GetObjectItem(cJSON_GetObjectItem(e, "args"), "rows");
        struct span *s = &spans[count++];
        *s = (struct span){.from = from,
                           .to = from + cJSON_GetObjectItem(e, "dur")->valuedouble,
                           .row = cJSON_GetObjectItem(e, "tid")->valueint,
                           .rows = rows ? rows->valueint : 0};
        snprintf(s->name, sizeof s->name, "%s", cJSON_GetStringValue(cJSON_GetObjectItem(e, "name")));
    }
    cJSON_Delete(root);
    free(text);
}

static int by_start(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

static int fail(const char *what, int row, unsigned n)
{
    fprintf(stderr, "row %d: %s: %u\n", row, what, n);
    return 1;
}

/* A port's or a duck's work comes one after the other. */
static int check_row(int row, const char *name, unsigned least)
{
    unsigned n = 0;
    double last = 0;
    for (size_t i = 0; i < count; i++) {
        if (spans[i].row != row) continue;
        if (spans[i].from < last - 0.002) return fail("overlaps the one before", row, n);
        last = spans[i].to;
        n += strcmp(spans[i].name, name) == 0;
    }
    return n < least ? fail(name, row, n) : 0;
}

static bool at_flock(const struct span *s, int lane, bool chunk)
{
    return s->row == LANE + lane && strcmp(s->name, "flock") == 0 && (s->rows > 1) == chunk;
}

/* Steps of lane 1 while one of lane 0 is at the flock: at least a quarter of them. */
static int check_overlap(bool chunk, unsigned least)
{
    unsigned steps = 0, beside = 0;
    for (size_t i = 0; i < count; i++) {
        if (!at_flock(&spans[i], 1, chunk)) continue;
        bool found = false;
        for (size_t k = 0; k < count && !found; k++)
            found =
                at_flock(&spans[k], 0, chunk) && spans[k].from < spans[i].to && spans[i].from < spans[k].to;
        steps++;
        beside += found;
    }
    printf("%s: %u of %u steps of lane 1 at the flock beside one of lane 0\n", chunk ? "chunks" : "pairs",
           beside, steps);
    return steps < least || 4 * beside < steps ? fail("no overlap", LANE + 1, beside) : 0;
}

int main(int argc, char **argv)
{
    if (argc != 2) return 2;
    read_spans(argv[1]);
    qsort(spans, count, sizeof *spans, by_start);
    int bad = check_row(PORT, "send", 150) | check_row(PORT, "add", 150) | check_row(DUCK, "compute", 150) |
              check_row(DUCK + 1, "compute", 150) | check_overlap(false, 60) | check_overlap(true, 4);
    free(spans);
    return bad;
}
