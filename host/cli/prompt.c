/* prompt.c: see prompt.h. */
#include "host/cli/prompt.h"

#include <errno.h>
#include <string.h>

int prompt_encode(const struct session *s, const struct prompt_form *form, const char *text, size_t length,
                  struct ids *out, struct error *err)
{
    if (form->raw) {
        if (ids_push(out, s->config.bos_id)) return error_set(err, -ENOMEM, "out of memory");
        return tokenizer_encode(s->tokenizer, text, length, false, out, err);
    }
    if (form->think && s->end_think < 0) {
        return error_set(err, -EINVAL, "%s has no <think> token: it cannot think first", s->dir);
    }
    struct chat_message messages[2] = {
        {.role = CHAT_SYSTEM,
         .content = form->system ? form->system : "",
         .length = form->system ? strlen(form->system) : 0},
        {.role = CHAT_USER, .content = text, .length = length},
    };
    size_t skip = form->system ? 0 : 1;
    const struct chat_request chat = {
        .messages = messages + skip, .count = 2 - skip, .thinking = form->think};
    return chat_encode(&s->chat, s->tokenizer, &chat, out, err);
}
