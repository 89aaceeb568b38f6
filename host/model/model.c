/* model.c: config first, so that what is not a supported model is refused before gigabytes are mapped. */
#include "host/model/model.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "host/model/json.h"
#include "host/model/synthetic.h"

/* Weights that no loader asks for pass unseen; without its shared experts a model talks nonsense. */
static int check_shared_experts(const struct model *m, struct error *err)
{
    const struct model_config *c = &m->config;
    char name[96];
    if (c->shared_experts > 0 || c->first_dense_layers >= c->layers || c->experts == 0) return 0;
    snprintf(name, sizeof name, "model.layers.%u.mlp.shared_experts.gate_proj.weight", c->first_dense_layers);
    const struct tensor *t = checkpoint_find(m->checkpoint, name);
    if (!t) return 0;
    return error_set(err, -EINVAL, "%s: tensor %s is there, but config.json has no n_shared_experts",
                     json_path_tail(checkpoint_file(m->checkpoint, t->file)), name);
}

int model_open(struct model *out, const char *dir, struct error *err)
{
    *out = (struct model){0};
    if (strlen(dir) >= sizeof out->dir)
        return error_set(err, -ENAMETOOLONG, "model directory: path of %zu bytes, allowed: %zu", strlen(dir),
                         sizeof out->dir - 1);
    snprintf(out->dir, sizeof out->dir, "%s", dir);
    int rc = model_config_read(&out->config, dir, err);
    if (!rc) rc = checkpoint_open(&out->checkpoint, dir, err);
    return rc ? rc : check_shared_experts(out, err);
}

void model_close(struct model *m)
{
    checkpoint_close(m->checkpoint);
    m->checkpoint = NULL;
    synthetic_close(m->synthetic);
    m->synthetic = NULL;
}
