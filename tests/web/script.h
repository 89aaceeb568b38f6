/* script.h: a model that says what it is told to, behind the backend's seam.
 *
 * Its answer is the text between the last "[[" and "]]" of its prompt (control tokens recognised), then EOS:
 * so that a test can have any answer, in particular calls of tools, which duckling was not trained to make.
 * Engine, sampler and prefix cache are the real ones; its "KV" of a position is the token there. */
#ifndef DUCKD_TESTS_WEB_SCRIPT_H
#define DUCKD_TESTS_WEB_SCRIPT_H

#include "host/http/http.h"

#define SCRIPT_LANES 4

struct script;
/* On the tokenizer and the shape of the model in `dir`; tokens come at least pace_ns apart, the first
 * one at once. */
int script_open(struct script **out, const char *dir, long pace_ns, struct error *err);
void script_close(struct script *s);
const struct model_config *script_config(const struct script *s);
const struct tokenizer *script_tokenizer(const struct script *s);

/* http_options.load, with the script as ctx. */
int script_load(void *ctx, struct engine **out, struct error *err);

#endif
