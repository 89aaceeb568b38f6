/* load.c: list all experts, sort them by place in the files, let the pool's threads hand them over, wait
 * until ducks hold them. */
#include "host/flock/load.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "duck/wire.h"
#include "host/flock/load_bar.h"
#include "host/model/json.h"

/* One expert: its three matrices, which lie side by side in the file. */
struct item {
    struct weight weight[3];
    struct transport_matrix matrix[3];
    uint32_t file;
    uint64_t offset, bytes;
};

struct loading {
    struct transport *transport;
    struct item *item;
    size_t items;
    _Atomic uint64_t given; // bytes
    // The first item that failed, in order, so that the message does not depend on timing.
    _Atomic size_t failed; // SIZE_MAX: none
    pthread_mutex_t mutex; // of rc and err
    int rc;
    struct error *err;
};

/* Hash of every file's path, size and times; the caller frees it. NULL: no memory. The time of modification
 * can be set to anything, and copying and unpacking do; that of the last change cannot. */
static uint64_t *file_keys(const struct checkpoint *c)
{
    uint32_t files = checkpoint_files(c);
    uint64_t *key = calloc(files + 1, sizeof *key);
    for (uint32_t i = 0; key && i < files; i++) {
        const char *path = checkpoint_file(c, i);
        char real[4096] = "";
        struct stat st;
        if (!realpath(path, real) || stat(path, &st) != 0) continue; // 0: never counts as known
        const uint64_t what[6] = {wire_object_hash((const uint8_t *)real, strlen(real)),
                                  (uint64_t)st.st_size,
                                  (uint64_t)st.st_mtim.tv_sec,
                                  (uint64_t)st.st_mtim.tv_nsec,
                                  (uint64_t)st.st_ctim.tv_sec,
                                  (uint64_t)st.st_ctim.tv_nsec};
        key[i] = wire_object_hash((const uint8_t *)what, sizeof what);
    }
    return key;
}

static uint64_t source_of(const uint64_t *file_key, const struct tensor *t)
{
    const uint64_t what[3] = {file_key[t->file], t->file_offset, t->bytes};
    return what[0] ? wire_object_hash((const uint8_t *)what, sizeof what) : 0;
}

static const char *const matrix_name[] = {
    [DUCK_GATE] = "gate_proj", [DUCK_UP] = "up_proj", [DUCK_DOWN] = "down_proj"};

static int find_weight(struct weight *out, const struct transport_matrix *m, const struct model *model,
                       uint32_t hidden, struct error *err)
{
    const struct model_config *c = &model->config;
    bool down = m->which == DUCK_DOWN;
    uint64_t rows = down ? hidden : m->tensor_width, cols = down ? m->tensor_width : hidden;
    const char *name = matrix_name[m->which];
    if (model_layer_is_dense(c, m->bank)) {
        return checkpoint_matrix(model->checkpoint, out, rows, cols, err, "model.layers.%u.mlp.%s.weight",
                                 m->bank, name);
    }
    if (m->expert < c->experts) {
        return checkpoint_matrix(model->checkpoint, out, rows, cols, err,
                                 "model.layers.%u.mlp.experts.%u.%s.weight", m->bank, m->expert, name);
    }
    return checkpoint_matrix(model->checkpoint, out, rows, cols, err,
                             "model.layers.%u.mlp.shared_experts.%s.weight", m->bank, name);
}

/* Always-on experts are the parts of one wide tensor. */
static int list_expert(struct item *it, const struct plan *plan, uint32_t bank, uint32_t expert,
                       const struct model *model, const uint64_t *file_key, struct error *err)
{
    const struct duck_bank_shape *s = &plan->bank[bank];
    bool always = expert >= s->routed;
    for (int which = DUCK_GATE; which <= DUCK_DOWN; which++) {
        struct transport_matrix *m = &it->matrix[which];
        *m = (struct transport_matrix){.bank = bank,
                                       .expert = expert,
                                       .which = (enum duck_matrix)which,
                                       .column = always ? (expert - s->routed) * s->width : 0,
                                       .tensor_width = always ? s->always * s->width : s->width};
        int rc = find_weight(&it->weight[which], m, model, plan->hidden, err);
        if (rc != 0) return rc;
        const struct tensor *t = checkpoint_find(model->checkpoint, it->weight[which].name);
        it->bytes += t->bytes / (m->tensor_width / s->width);
        m->source = source_of(file_key, t);
        if (which == DUCK_GATE) {
            it->file = t->file;
            it->offset = t->file_offset;
        }
    }
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->matrix[0].expert < y->matrix[0].expert
               ? -1
               : x->matrix[0].expert > y->matrix[0].expert; // parts of one tensor
}

static int list_items(struct loading *l, const struct plan *plan, const struct model *model,
                      struct error *err)
{
    size_t count = 0, n = 0;
    for (uint32_t b = 0; b < plan->banks; b++) count += plan->bank[b].routed + plan->bank[b].always;
    l->item = calloc(count, sizeof *l->item);
    if (!l->item) return error_set(err, -ENOMEM, "no memory for a list of %zu experts", count);
    l->items = count;
    uint64_t *file_key = file_keys(model->checkpoint);
    int rc = file_key ? 0 : error_set(err, -ENOMEM, "no memory for a list of files");
    for (uint32_t b = 0; b < plan->banks && rc == 0; b++) {
        for (uint32_t e = 0; e < plan->bank[b].routed + plan->bank[b].always && rc == 0; e++)
            rc = list_expert(&l->item[n++], plan, b, e, model, file_key, err);
    }
    free(file_key);
    if (rc != 0) return rc;
    qsort(l->item, count, sizeof *l->item, by_place);
    for (size_t i = 0; i < count; i++) // not before sorting: items moved
        for (int which = DUCK_GATE; which <= DUCK_DOWN; which++)
            l->item[i].matrix[which].weight = &l->item[i].weight[which];
    return 0;
}

static int load_expert(struct transport *t, struct item *it, struct error *err)
{
    for (int which = DUCK_GATE; which <= DUCK_DOWN; which++) {
        int rc = t->ops->load(t, &it->matrix[which], err);
        if (rc != 0) return rc;
    }
    return 0;
}

static void load_item(void *arg, size_t task, unsigned worker)
{
    (void)worker;
    struct loading *l = arg;
    if (task > atomic_load(&l->failed)) return;
    struct item *it = &l->item[task];
    struct error err = {0};
    int rc = load_expert(l->transport, it, &err);
    if (rc != 0) {
        pthread_mutex_lock(&l->mutex);
        if (task < atomic_load(&l->failed)) {
            atomic_store(&l->failed, task);
            l->rc = rc;
            if (l->err) *l->err = err;
        }
        pthread_mutex_unlock(&l->mutex);
        return;
    }
    atomic_fetch_add(&l->given, it->bytes);
}

static bool is_expert(const struct tensor *t)
{
    return strstr(t->name, "_proj.weight") && strstr(t->name, ".mlp.") && !strstr(t->name, "_scale_inv");
}

int flock_check_e4m3(const struct model *model, struct error *err)
{
    for (size_t i = 0; i < checkpoint_tensors(model->checkpoint); i++) {
        const struct tensor *t = checkpoint_tensor(model->checkpoint, i);
        if (is_expert(t) && t->dtype != DTYPE_F8_E4M3)
            return error_set(err, -EINVAL,
                             "%s: %s is %s: ducks can keep experts as e4m3 (--expert-format e4m3) only if "
                             "all of the checkpoint's are",
                             json_path_tail(checkpoint_file(model->checkpoint, t->file)), t->name,
                             t->dtype_name);
    }
    return 0;
}

uint32_t flock_element_bytes(const struct model *model)
{
    uint32_t most = 1;
    for (size_t i = 0; i < checkpoint_tensors(model->checkpoint); i++) {
        const struct tensor *t = checkpoint_tensor(model->checkpoint, i);
        if (!is_expert(t)) continue;
        uint32_t bytes = transport_element_bytes(t->dtype);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* By the pool's threads and for all to see. */
static int load_in_parallel(struct loading *l, const struct plan *plan, const struct spec_duck *duck,
                            struct pool *pool, struct error *err)
{
    const struct transport_ops *ops = l->transport->ops;
    struct load_bar bar;
    uint64_t total = 0;
    for (size_t i = 0; i < l->items; i++) {
        total += l->item[i].bytes;
        for (int which = DUCK_GATE; ops->expect && which <= DUCK_DOWN; which++)
            ops->expect(l->transport, &l->item[i].matrix[which]);
    }
    int rc = load_bar_begin(&bar, l->transport, duck, plan->ducks, &l->given, total, err);
    if (rc != 0) return rc;
    pool_run(pool, load_item, l, l->items);
    rc = l->rc;
    if (rc == 0 && ops->loaded) rc = ops->loaded(l->transport, err);
    load_bar_end(&bar);
    return rc;
}

int flock_load(struct transport *t, const struct plan *plan, const struct model *model,
               const struct spec_duck *duck, struct pool *pool, struct error *err)
{
    struct loading l = {.transport = t, .failed = SIZE_MAX, .mutex = PTHREAD_MUTEX_INITIALIZER, .err = err};
    int rc = list_items(&l, plan, model, err);
    if (rc == 0) rc = load_in_parallel(&l, plan, duck, pool, err);
    pthread_mutex_destroy(&l.mutex);
    free(l.item);
    return rc;
}

int flock_load_quietly(struct transport *t, const struct plan *plan, const struct model *model,
                       const _Atomic bool *stop, struct error *err)
{
    struct loading l = {.transport = t};
    int rc = list_items(&l, plan, model, err);
    for (size_t i = 0; i < l.items && rc == 0; i++)
        rc = *stop ? error_set(err, -ECANCELED, "loading was ended") : load_expert(t, &l.item[i], err);
    if (rc == 0 && t->ops->loaded) rc = t->ops->loaded(t, err);
    free(l.item);
    return rc;
}
