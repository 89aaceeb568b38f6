/* goldens.h: expected values of a golden test by tensor name.
 *
 * Reads a directory with manifest.json and goldens.safetensors. Places and shapes come from the manifest (it
 * gives absolute byte offsets), not from duckd's own safetensors parser, so that a fault of that parser
 * cannot hide itself. Arrays stay valid until goldens_close(). */
#ifndef DUCKD_TESTS_GOLDEN_GOLDENS_H
#define DUCKD_TESTS_GOLDEN_GOLDENS_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

#include "host/util/error.h"

struct golden {
    const char *name;
    uint32_t dims;
    uint64_t shape[8];
    uint64_t count;   // product of the shape
    const float *f;   // F32, else NULL
    const int32_t *i; // I32, else NULL
};

struct goldens;

int goldens_open(struct goldens **out, const char *dir, struct error *err);
void goldens_close(struct goldens *g);

/* By name, made from a format: goldens_find(g, "%s.logits", prompt). NULL: there is none. */
const struct golden *goldens_find(const struct goldens *g, const char *name_format, ...)
    __attribute__((format(printf, 2, 3)));

/* The whole manifest: prompts, margins, rows to leave out. */
const cJSON *goldens_manifest(const struct goldens *g);

#endif
