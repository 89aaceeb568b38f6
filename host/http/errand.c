/* errand.c: see errand.h. */
#include "host/http/errand.h"

#include <stdlib.h>

static void finish(struct errand *e)
{
    struct connection *c = e->connection;
    if (c) {
        c->errand = NULL;
        e->done(e, e->rc);
    }
    job_free(e->completion.job);
    ids_free(&e->ids);
    buffer_free(&e->request.body);
}

static void on_work(uv_work_t *work)
{
    struct errand *e = (struct errand *)work;
    e->rc = e->read(e);
}

static void on_done(uv_work_t *work, int status)
{
    struct errand *e = (struct errand *)work;
    (void)status; // never cancelled
    e->server->errands--;
    finish(e);
    free(e);
}

void errand_run(struct connection *c, bool chat, int (*read)(struct errand *e),
                void (*done)(struct errand *e, int rc))
{
    struct errand now = {
        .server = c->server, .connection = c, .completion.chat = chat, .read = read, .done = done};
    struct errand *later = c->request.body.length > ERRAND_BODY ? malloc(sizeof *later) : NULL;
    now.request.body = c->request.body;
    c->request.body = (struct buffer){0};
    if (!later) { // small, or no memory for anything better
        now.rc = read(&now);
        finish(&now);
        return;
    }
    *later = now;
    c->errand = later;
    c->server->errands++;
    uv_queue_work(&c->server->loop, &later->work, on_work, on_done);
}

void errand_gone(struct errand *e)
{
    e->connection = NULL;
}
