/* dump.h: `duckd logits --dump DIR`: what the model computes on its way, as safetensors.
 *
 * DIR/goldens.safetensors has the tensors of tests/goldens (their READMEs define each), without a prompt's
 * name in front; DIR/manifest.json gives dtype, shape and absolute byte offset of each. The file is laid out
 * first and filled in place through a mapping, so memory does not grow with the prompt. Both files appear
 * complete or not at all. Tensors of all positions that would pass DUMP_LARGEST bytes are left out, which is
 * said on stderr and in the manifest. */
#ifndef DUCKD_HOST_CLI_DUMP_H
#define DUCKD_HOST_CLI_DUMP_H

#include "host/cli/session.h"

#define DUMP_LARGEST ((uint64_t)1 << 30)

struct dump_shape {
    const struct ids *ids;
    uint32_t logits_from; // logits are kept for positions >= this
    uint32_t index_from;  // and indexer rows for positions >= this
    bool mtp;
};

struct dump;
int dump_open(struct dump **out, const char *dir, const struct session *s, const struct dump_shape *shape,
              struct error *err);
const struct backend_probe *dump_probe(const struct dump *d);
void dump_row(struct dump *d, uint32_t position, const float *logits);
void dump_mtp_row(struct dump *d, uint32_t position, const float *logits);
int dump_commit(struct dump *d, struct error *err);
void dump_close(struct dump *d);

#endif
