/* dump.c: lays the tensors out, maps the file, and puts every value where it belongs as it is made. */
#include "host/cli/dump.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "host/cli/logprob.h"
#include "host/cli/output.h"
#include "host/util/log.h"

enum tensor_name {
    T_IDS,
    T_LOGITS_ROWS,
    T_LOGITS,
    T_ARGMAX,
    T_NEXT_LOGPROB,
    T_HIDDEN,
    T_FINAL_NORM,
    T_ROUTER_LAYERS,
    T_ROUTER_IDS,
    T_ROUTER_WEIGHTS,
    T_MTP_ROWS,
    T_MTP_LOGITS,
    T_MTP_ARGMAX,
    T_MTP_HIDDEN,
    T_MTP_ROUTER_IDS,
    T_MTP_ROUTER_WEIGHTS,
    T_INDEX_ROWS,
    T_INDEX_TOPK,
    T_INDEX_SCORES,
    T_INDEX_GAP,
    T_COUNT
};

struct entry {
    const char *name;
    bool floats, present;
    bool may_be_left_out; // grows with every position
    uint32_t dims;
    uint64_t shape[3];
    uint64_t offset; // in the data part
    float *f;        // in the mapping; one of the two
    int32_t *i;
};

struct dump {
    const struct session *session;
    struct dump_shape shape;
    uint32_t positions;
    struct entry tensor[T_COUNT];
    char left_out[256];
    struct output_file file, manifest;
    uint8_t *map;
    uint64_t header_bytes, data_bytes;
    struct backend_probe probe;
};

static uint64_t entry_bytes(const struct entry *t)
{
    uint64_t n = sizeof(float);
    for (uint32_t d = 0; d < t->dims; d++) n *= t->shape[d];
    return n;
}

/* ---- layout ---- */

static struct entry shape_of(const char *name, bool floats, uint32_t dims, uint64_t a, uint64_t b, uint64_t c)
{
    return (struct entry){.name = name, .floats = floats, .present = true, .dims = dims, .shape = {a, b, c}};
}

static void all_positions(struct dump *d, enum tensor_name name, struct entry e)
{
    e.may_be_left_out = true;
    d->tensor[name] = e;
}

static void lay_out_main(struct dump *d, const struct model_config *c)
{
    uint64_t p = d->positions, rows = p - d->shape.logits_from, moe = c->layers - c->first_dense_layers;
    if (!c->experts || c->first_dense_layers > c->layers) moe = 0;
    d->tensor[T_IDS] = shape_of("ids", false, 1, p, 0, 0);
    d->tensor[T_LOGITS_ROWS] = shape_of("logits_rows", false, 1, rows, 0, 0);
    d->tensor[T_LOGITS] = shape_of("logits", true, 2, rows, c->vocab_size, 0);
    d->tensor[T_ARGMAX] = shape_of("argmax", false, 1, p, 0, 0);
    d->tensor[T_NEXT_LOGPROB] = shape_of("next_logprob", true, 1, p - 1, 0, 0);
    all_positions(d, T_HIDDEN, shape_of("hidden", true, 3, c->layers + 1, p, c->hidden_size));
    all_positions(d, T_FINAL_NORM, shape_of("final_norm", true, 2, p, c->hidden_size, 0));
    if (moe) {
        d->tensor[T_ROUTER_LAYERS] = shape_of("router_layers", false, 1, moe, 0, 0);
        all_positions(d, T_ROUTER_IDS, shape_of("router_ids", false, 3, moe, p, c->top_k));
        all_positions(d, T_ROUTER_WEIGHTS, shape_of("router_weights", true, 3, moe, p, c->top_k));
    }
    if (c->index_topk) {
        uint64_t r = p - d->shape.index_from, k = c->index_topk < p ? c->index_topk : p;
        d->tensor[T_INDEX_ROWS] = shape_of("index_rows", false, 1, r, 0, 0);
        d->tensor[T_INDEX_TOPK] = shape_of("index_topk", false, 3, c->layers, r, k);
        d->tensor[T_INDEX_SCORES] = shape_of("index_scores", true, 3, c->layers, r, p);
        d->tensor[T_INDEX_GAP] = shape_of("index_gap", true, 2, c->layers, r, 0);
    }
}

static void lay_out_mtp(struct dump *d, const struct model_config *c)
{
    uint64_t p = d->positions - 1, from = d->shape.logits_from;
    uint64_t rows = p > from ? p - from : 0;
    d->tensor[T_MTP_ROWS] = shape_of("mtp_rows", false, 1, rows, 0, 0);
    d->tensor[T_MTP_LOGITS] = shape_of("mtp_logits", true, 2, rows, c->vocab_size, 0);
    d->tensor[T_MTP_ARGMAX] = shape_of("mtp_argmax", false, 1, p, 0, 0);
    all_positions(d, T_MTP_HIDDEN, shape_of("mtp_hidden", true, 2, p, c->hidden_size, 0));
    if (c->experts) {
        all_positions(d, T_MTP_ROUTER_IDS, shape_of("mtp_router_ids", false, 2, p, c->top_k, 0));
        all_positions(d, T_MTP_ROUTER_WEIGHTS, shape_of("mtp_router_weights", true, 2, p, c->top_k, 0));
    }
}

/* Offsets, and what is too large to keep. */
static void place(struct dump *d)
{
    for (size_t i = 0; i < T_COUNT; i++) {
        struct entry *t = &d->tensor[i];
        if (!t->present) continue;
        if (t->may_be_left_out && entry_bytes(t) > DUMP_LARGEST) {
            size_t used = strlen(d->left_out);
            snprintf(d->left_out + used, sizeof d->left_out - used, "%s%s", used ? ", " : "", t->name);
            t->present = false;
            continue;
        }
        t->offset = d->data_bytes;
        d->data_bytes += entry_bytes(t);
    }
    if (d->left_out[0]) {
        log_notice("dump: left out, over %" PRIu64 " MiB each at %u positions: %s", DUMP_LARGEST >> 20,
                   d->positions, d->left_out);
    }
}

static void print_shape(FILE *to, const struct entry *t)
{
    fprintf(to, "\"dtype\": \"%s\", \"shape\": [", t->floats ? "F32" : "I32");
    for (uint32_t k = 0; k < t->dims; k++) fprintf(to, k ? ", %" PRIu64 : "%" PRIu64, t->shape[k]);
    fputc(']', to);
}

static int write_header(struct dump *d, struct error *err)
{
    char *text = NULL;
    size_t length = 0;
    FILE *m = open_memstream(&text, &length);
    if (!m) return error_set(err, -ENOMEM, "out of memory");
    const char *comma = "{";
    for (size_t i = 0; i < T_COUNT; i++) {
        const struct entry *t = &d->tensor[i];
        if (!t->present) continue;
        fprintf(m, "%s\"%s\": {", comma, t->name);
        print_shape(m, t);
        fprintf(m, ", \"data_offsets\": [%" PRIu64 ", %" PRIu64 "]}", t->offset, t->offset + entry_bytes(t));
        comma = ", ";
    }
    fputc('}', m);
    while (ftell(m) % 64 != 56) fputc(' ', m); // the data then starts at a multiple of 64
    fclose(m);
    uint8_t size[8];
    for (size_t i = 0; i < 8; i++) size[i] = (uint8_t)((uint64_t)length >> (8 * i));
    fwrite(size, 1, 8, d->file.stream);
    fwrite(text, 1, length, d->file.stream);
    free(text);
    d->header_bytes = 8 + length;
    if (fflush(d->file.stream) != 0) {
        return error_set(err, -errno, "%s: cannot be written: %s", d->file.path, strerror(errno));
    }
    return 0;
}

static int map_file(struct dump *d, struct error *err)
{
    uint64_t bytes = d->header_bytes + d->data_bytes;
    int fd = fileno(d->file.stream);
    int code = posix_fallocate(fd, 0, (off_t)bytes); // a full disk is noticed now and not by a signal later
    if (code) {
        return error_set(err, -code, "%s: no room for %.1f MB: %s", d->file.path, (double)bytes * 1e-6,
                         strerror(code));
    }
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return error_set(err, -errno, "%s: cannot be mapped: %s", d->file.path, strerror(errno));
    d->map = map;
    for (size_t i = 0; i < T_COUNT; i++) {
        struct entry *t = &d->tensor[i];
        if (!t->present) continue;
        void *at = d->map + d->header_bytes + t->offset;
        if (t->floats) {
            t->f = at;
        } else {
            t->i = at;
        }
    }
    return 0;
}

static void fill_known(struct dump *d)
{
    const struct entry *t = d->tensor;
    const struct model_config *c = &d->session->config;
    memcpy(t[T_IDS].i, d->shape.ids->id, d->positions * sizeof(int32_t));
    const struct {
        enum tensor_name name;
        uint32_t first;
    } rows[] = {{T_LOGITS_ROWS, d->shape.logits_from},
                {T_MTP_ROWS, d->shape.logits_from},
                {T_INDEX_ROWS, d->shape.index_from},
                {T_ROUTER_LAYERS, c->first_dense_layers}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct entry *e = &t[rows[i].name];
        for (uint64_t k = 0; e->present && k < e->shape[0]; k++) e->i[k] = (int32_t)(rows[i].first + k);
    }
    if (!t[T_INDEX_ROWS].present) return;
    for (uint64_t k = 0; k < entry_bytes(&t[T_INDEX_TOPK]) / 4; k++) t[T_INDEX_TOPK].i[k] = -1;
    for (uint64_t k = 0; k < entry_bytes(&t[T_INDEX_SCORES]) / 4; k++) t[T_INDEX_SCORES].f[k] = -INFINITY;
    for (uint64_t k = 0; k < entry_bytes(&t[T_INDEX_GAP]) / 4; k++) t[T_INDEX_GAP].f[k] = INFINITY;
}

/* ---- values as they come ---- */

static void put(const struct entry *t, uint64_t at, const float *f, const int32_t *i, size_t n)
{
    if (!t->present) return;
    if (t->floats && f) memcpy(t->f + at, f, n * sizeof *f);
    if (!t->floats && i) memcpy(t->i + at, i, n * sizeof *i);
}

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* K-th minus (K+1)-th largest score: how clear the indexer's choice was. */
static float score_gap(const float *scores, size_t n, uint32_t k)
{
    if (n <= k) return INFINITY; // everything was chosen
    float *sorted = malloc(n * sizeof *sorted);
    if (!sorted) return NAN;
    memcpy(sorted, scores, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, descending);
    float gap = sorted[k - 1] - sorted[k];
    free(sorted);
    return gap;
}

static void put_index_row(struct dump *d, const char *name, uint32_t layer, uint32_t position, const float *f,
                          const int32_t *i, size_t n)
{
    const struct entry *t = d->tensor;
    const struct model_config *c = &d->session->config;
    if (!t[T_INDEX_ROWS].present || position < d->shape.index_from || layer >= c->layers) return;
    uint64_t row = layer * t[T_INDEX_ROWS].shape[0] + position - d->shape.index_from;
    if (!strcmp(name, "index_scores") && f) {
        put(&t[T_INDEX_SCORES], row * d->positions, f, NULL, n);
        t[T_INDEX_GAP].f[row] = score_gap(f, n, c->index_topk);
    } else if (!strcmp(name, "index_topk") && i) {
        put(&t[T_INDEX_TOPK], row * t[T_INDEX_TOPK].shape[2], NULL, i, n);
    }
}

static void on_probe(void *ctx, const char *name, uint32_t layer, uint32_t position, const float *f,
                     const int32_t *i, size_t n)
{
    struct dump *d = ctx;
    const struct entry *t = d->tensor;
    const struct model_config *c = &d->session->config;
    if (position >= d->positions) return;
    if (!strncmp(name, "index_", 6)) {
        put_index_row(d, name, layer, position, f, i, n);
        return;
    }
    bool mtp_row = position < d->positions - 1;
    uint64_t moe_row = ((uint64_t)layer - c->first_dense_layers) * d->positions + position;
    const struct {
        const char *name;
        enum tensor_name tensor;
        bool wanted;
        uint64_t row, width;
    } places[] = {
        {"hidden", T_HIDDEN, true, (uint64_t)layer * d->positions + position, c->hidden_size},
        {"final_norm", T_FINAL_NORM, true, position, c->hidden_size},
        {"router_ids", T_ROUTER_IDS, layer < c->layers, moe_row, c->top_k},
        {"router_weights", T_ROUTER_WEIGHTS, layer < c->layers, moe_row, c->top_k},
        {"mtp_hidden", T_MTP_HIDDEN, mtp_row, position, c->hidden_size},
        {"mtp_router_ids", T_MTP_ROUTER_IDS, mtp_row, position, c->top_k},
        {"mtp_router_weights", T_MTP_ROUTER_WEIGHTS, mtp_row, position, c->top_k},
    };
    for (size_t k = 0; k < sizeof places / sizeof places[0]; k++) {
        if (strcmp(name, places[k].name) != 0) continue;
        if (places[k].wanted) put(&t[places[k].tensor], places[k].row * places[k].width, f, i, n);
        return;
    }
}

static int32_t argmax(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++) best = logits[i] > logits[best] ? i : best;
    return (int32_t)best;
}

void dump_row(struct dump *d, uint32_t position, const float *logits)
{
    uint32_t vocab = d->session->config.vocab_size;
    const struct entry *t = d->tensor;
    t[T_ARGMAX].i[position] = argmax(logits, vocab);
    if (position + 1 < d->positions) {
        t[T_NEXT_LOGPROB].f[position] = (float)logprob(logits, vocab, d->shape.ids->id[position + 1]);
    }
    if (position >= d->shape.logits_from) {
        put(&t[T_LOGITS], (uint64_t)(position - d->shape.logits_from) * vocab, logits, NULL, vocab);
    }
}

void dump_mtp_row(struct dump *d, uint32_t position, const float *logits)
{
    uint32_t vocab = d->session->config.vocab_size;
    const struct entry *t = d->tensor;
    if (position + 1 >= d->positions) return;
    t[T_MTP_ARGMAX].i[position] = argmax(logits, vocab);
    if (position >= d->shape.logits_from) {
        put(&t[T_MTP_LOGITS], (uint64_t)(position - d->shape.logits_from) * vocab, logits, NULL, vocab);
    }
}

/* ---- the end ---- */

/* Experts ascending, as the goldens have them; weights move along. k is small. */
static void sort_router(const struct entry *ids, const struct entry *weights)
{
    if (!ids->present || !weights->present) return;
    uint64_t k = ids->shape[ids->dims - 1], rows = entry_bytes(ids) / 4 / k;
    for (uint64_t r = 0; r < rows; r++) {
        int32_t *id = ids->i + r * k;
        float *w = weights->f + r * k;
        for (uint64_t a = 1; a < k; a++) {
            for (uint64_t b = a; b > 0 && id[b - 1] > id[b]; b--) {
                int32_t i = id[b];
                float f = w[b];
                id[b] = id[b - 1];
                w[b] = w[b - 1];
                id[b - 1] = i;
                w[b - 1] = f;
            }
        }
    }
}

static void write_manifest(struct dump *d)
{
    FILE *m = d->manifest.stream;
    const char *dir = d->session->dir, *slash = strrchr(dir, '/');
    const char *name = slash && slash[1] ? slash + 1 : dir;
    fputs("{\n \"checkpoint\": ", m);
    output_json_string(m, name, strlen(name));
    fprintf(m, ",\n \"made_by\": \"duckd %s logits --dump\",\n \"prompt_tokens\": %u,\n \"left_out\": ",
            DUCKD_VERSION, d->positions);
    output_json_string(m, d->left_out, strlen(d->left_out));
    fputs(",\n \"tensors\": {", m);
    const char *comma = "\n";
    for (size_t i = 0; i < T_COUNT; i++) {
        const struct entry *t = &d->tensor[i];
        if (!t->present) continue;
        fprintf(m, "%s  \"%s\": {", comma, t->name);
        print_shape(m, t);
        fprintf(m, ", \"byte_offset\": %" PRIu64 "}", d->header_bytes + t->offset);
        comma = ",\n";
    }
    fputs("\n }\n}\n", m);
}

int dump_open(struct dump **out, const char *dir, const struct session *s, const struct dump_shape *shape,
              struct error *err)
{
    char path[4200];
    struct dump *d = calloc(1, sizeof *d);
    if (!d) return error_set(err, -ENOMEM, "out of memory");
    d->session = s;
    d->shape = *shape;
    d->positions = (uint32_t)shape->ids->count;
    d->probe = (struct backend_probe){.row = on_probe, .ctx = d};
    int rc = output_directory(dir, err);
    snprintf(path, sizeof path, "%s/goldens.safetensors", dir);
    if (!rc) rc = output_open(&d->file, path, err);
    snprintf(path, sizeof path, "%s/manifest.json", dir);
    if (!rc) rc = output_open(&d->manifest, path, err);
    if (!rc) {
        lay_out_main(d, &s->config);
        if (shape->mtp && d->positions > 1) lay_out_mtp(d, &s->config);
        place(d);
        rc = write_header(d, err);
    }
    if (!rc) rc = map_file(d, err);
    if (rc) {
        dump_close(d);
        return rc;
    }
    fill_known(d);
    *out = d;
    return 0;
}

const struct backend_probe *dump_probe(const struct dump *d)
{
    return &d->probe;
}

int dump_commit(struct dump *d, struct error *err)
{
    sort_router(&d->tensor[T_ROUTER_IDS], &d->tensor[T_ROUTER_WEIGHTS]);
    sort_router(&d->tensor[T_MTP_ROUTER_IDS], &d->tensor[T_MTP_ROUTER_WEIGHTS]);
    write_manifest(d);
    int rc = output_commit(&d->file, err);
    return rc ? rc : output_commit(&d->manifest, err);
}

void dump_close(struct dump *d)
{
    if (!d) return;
    if (d->map) munmap(d->map, d->header_bytes + d->data_bytes);
    output_abandon(&d->file);
    output_abandon(&d->manifest);
    free(d);
}
