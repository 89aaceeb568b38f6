/* model.c: config first, so that what is not a supported model is refused before gigabytes are mapped. */
#include "host/model/model.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "host/model/synthetic.h"

int model_open(struct model *out, const char *dir, struct error *err)
{
    *out = (struct model){0};
    if (strlen(dir) >= sizeof out->dir)
        return error_set(err, -ENAMETOOLONG, "model directory: path of %zu bytes, allowed: %zu", strlen(dir),
                         sizeof out->dir - 1);
    snprintf(out->dir, sizeof out->dir, "%s", dir);
    int rc = model_config_read(&out->config, dir, err);
    return rc ? rc : checkpoint_open(&out->checkpoint, dir, err);
}

void model_close(struct model *m)
{
    checkpoint_close(m->checkpoint);
    m->checkpoint = NULL;
    synthetic_close(m->synthetic);
    m->synthetic = NULL;
}
