/* trace.c: see trace.h. The JSON is made at the end; until then a span is 48 bytes in the ring. */
#include "host/util/trace.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "host/util/clock.h"

struct span {
    const char *name;
    uint64_t from_ns, to_ns;
    uint32_t kind, index, layer, position, rows;
};

bool trace_on;
static struct span *ring;
static _Atomic uint64_t added;
static uint64_t started_ns;

int trace_start(struct error *err)
{
    ring = malloc(TRACE_SPANS * sizeof *ring);
    if (!ring)
        return error_set(err, -ENOMEM, "no memory for a trace of %u spans: %zu bytes", TRACE_SPANS,
                         TRACE_SPANS * sizeof *ring);
    memset(ring, 0, TRACE_SPANS * sizeof *ring); // pages are there before the first span needs them
    atomic_store(&added, 0);
    started_ns = clock_ns();
    trace_on = true;
    return 0;
}

void trace__add(enum trace_kind kind, uint32_t index, const char *name, uint64_t from_ns, uint64_t to_ns,
                uint32_t layer, uint32_t position, uint32_t rows)
{
    uint64_t at = atomic_fetch_add_explicit(&added, 1, memory_order_relaxed);
    ring[at % TRACE_SPANS] = (struct span){name, from_ns, to_ns, kind, index, layer, position, rows};
}

/* ---- JSON ---- */

static const char *const row_names[] = {"engine", "lane", "backend", "flock", "port", "duck"};

/* Rows in the order of the kinds; the row's number is unique over all of them. */
static unsigned row_of(const struct span *s)
{
    return s->kind * 1000 + s->index;
}

static double us(uint64_t ns)
{
    return (double)(int64_t)(ns - started_ns) * 1e-3; // a span may have begun before the trace did
}

static void write_args(FILE *to, const struct span *s)
{
    fputs(", \"args\": {", to);
    const char *comma = "";
    if (s->layer != TRACE_NO_LAYER) {
        fprintf(to, "\"layer\": %u", s->layer);
        comma = ", ";
    }
    if (s->rows > 0) fprintf(to, "%s\"position\": %u, \"rows\": %u", comma, s->position, s->rows);
    fputs("}}", to);
}

static void write_span(FILE *to, const struct span *s)
{
    if (s->kind != TRACE_BACKEND && s->kind != TRACE_FLOCK) {
        fprintf(to,
                ",\n{\"ph\": \"X\", \"pid\": 1, \"tid\": %u, \"name\": \"%s\", \"ts\": %.3f, \"dur\": %.3f",
                row_of(s), s->name, us(s->from_ns), (double)(s->to_ns - s->from_ns) * 1e-3);
        write_args(to, s);
        return;
    }
    const char *row = row_names[s->kind];
    fprintf(
        to,
        ",\n{\"ph\": \"b\", \"pid\": 1, \"tid\": %u, \"cat\": \"%s\", \"id\": \"%s %u\", \"name\": \"%s\", "
        "\"ts\": %.3f",
        s->kind * 1000, row, row, s->index, s->name, us(s->from_ns));
    write_args(to, s);
    fprintf(
        to,
        ",\n{\"ph\": \"e\", \"pid\": 1, \"tid\": %u, \"cat\": \"%s\", \"id\": \"%s %u\", \"name\": \"%s\", "
        "\"ts\": %.3f}",
        s->kind * 1000, row, row, s->index, s->name, us(s->to_ns));
}

static void write_row_names(FILE *to, uint64_t count)
{
    uint32_t rows[TRACE_KINDS] = {0};
    for (uint64_t i = 0; i < count; i++)
        if (ring[i].index >= rows[ring[i].kind]) rows[ring[i].kind] = ring[i].index + 1;
    for (uint32_t kind = 0; kind < TRACE_KINDS; kind++) {
        bool one = kind == TRACE_ENGINE || kind == TRACE_BACKEND || kind == TRACE_FLOCK;
        for (uint32_t i = 0; i < (one && rows[kind] ? 1 : rows[kind]); i++) {
            fprintf(to,
                    ",\n{\"ph\": \"M\", \"pid\": 1, \"tid\": %u, \"name\": \"thread_name\", \"args\": "
                    "{\"name\": \"%s",
                    kind * 1000 + i, row_names[kind]);
            fprintf(to, one ? "\"}}" : " %u\"}}", i);
        }
    }
}

uint64_t trace_write(FILE *to)
{
    uint64_t total = atomic_load(&added), count = total < TRACE_SPANS ? total : TRACE_SPANS;
    trace_on = false;
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n{\"ph\": \"M\", \"pid\": 1, \"name\": "
          "\"process_name\", \"args\": {\"name\": \"duckd\"}}",
          to);
    write_row_names(to, count);
    for (uint64_t i = total - count; i < total; i++) write_span(to, &ring[i % TRACE_SPANS]);
    fputs("\n]}\n", to);
    free(ring);
    ring = NULL;
    return total - count;
}
