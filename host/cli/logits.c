/* logits.c: `duckd logits`: logits of given tokens as a plain array of floats. */
#include <errno.h>
#include <string.h>

#include "host/cli/commands.h"
#include "host/cli/dump.h"
#include "host/cli/input.h"
#include "host/cli/output.h"
#include "host/util/log.h"

struct logits {
    struct ids ids;
    uint32_t from, vocab; // first position written
    struct output_file out;
    struct dump *dump; // NULL: none
    struct progress progress;
};

static void on_row(void *ctx, uint32_t position, const float *logits)
{
    struct logits *l = ctx;
    if (position >= l->from) fwrite(logits, sizeof *logits, l->vocab, l->out.stream); // checked at the end
    if (l->dump) dump_row(l->dump, position, logits);
}

static void on_mtp_row(void *ctx, uint32_t position, const float *logits)
{
    struct logits *l = ctx;
    dump_mtp_row(l->dump, position, logits);
}

static void on_progress(void *ctx, uint32_t done, uint32_t total)
{
    struct logits *l = ctx;
    (void)total;
    progress_update(&l->progress, done);
}

static int read_ids(struct logits *l, struct session *s, struct error *err)
{
    const struct options *o = s->options;
    int rc = input_ids(o->tokens, &l->ids, err);
    if (!rc) rc = input_check_ids(&l->ids, s->config.vocab_size, input_name(o->tokens), err);
    if (!rc) rc = session_check_length(s, l->ids.count, input_name(o->tokens), err);
    if (rc) return rc;
    if ((uint64_t)o->last > l->ids.count) {
        return error_set(err, -ERANGE, "--last is %lld, %s has %zu token%s", (long long)o->last,
                         input_name(o->tokens), l->ids.count, l->ids.count == 1 ? "" : "s");
    }
    uint32_t count = (uint32_t)l->ids.count;
    l->from = o->last ? count - (uint32_t)o->last : 0;
    l->vocab = s->config.vocab_size;
    return 0;
}

static int open_dump(struct logits *l, struct session *s, struct error *err)
{
    const struct options *o = s->options;
    uint32_t count = (uint32_t)l->ids.count, rows = o->last ? (uint32_t)o->last : 4;
    struct dump_shape shape = {
        .ids = &l->ids, .logits_from = l->from, .index_from = count > rows ? count - rows : 0, .mtp = s->mtp};
    return dump_open(&l->dump, o->dump, s, &shape, err);
}

static int evaluate(struct logits *l, struct session *s, struct error *err)
{
    struct engine_rows rows = {.row = on_row, .progress = on_progress, .ctx = l};
    struct backend *backend = engine_backend(s->engine);
    uint32_t count = (uint32_t)l->ids.count;
    if (l->dump) {
        if (s->mtp && count > 1) rows.mtp_row = on_mtp_row;
        backend->ops->set_probe(backend, dump_probe(l->dump));
    }
    progress_begin(&l->progress, "evaluating", "tokens", count, 1);
    int rc = engine_evaluate(s->engine, l->ids.id, count, l->dump ? 0 : l->from, &rows, err);
    progress_end(&l->progress);
    if (l->dump) backend->ops->set_probe(backend, NULL);
    return rc;
}

int command_logits(const struct options *o, struct error *err)
{
    struct session s;
    struct logits l = {0};
    int rc = session_prepare(&s, o, SESSION_IDS, err);
    if (rc) return rc;
    s.mtp &= o->dump != NULL; // nothing else looks at it
    rc = read_ids(&l, &s, err);
    if (!rc) rc = output_open(&l.out, o->out, err);
    if (!rc && o->dump) rc = open_dump(&l, &s, err);
    if (!rc) rc = session_load(&s, err);
    if (!rc) rc = evaluate(&l, &s, err);
    if (!rc && l.dump) rc = dump_commit(l.dump, err);
    if (!rc) rc = output_commit(&l.out, err);
    output_abandon(&l.out);
    dump_close(l.dump);
    ids_free(&l.ids);
    session_close(&s);
    return rc;
}
