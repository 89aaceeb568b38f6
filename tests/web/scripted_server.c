/* scripted_server.c: the HTTP server in front of the scripted model. usage: scripted-server DIR [v31] */
#include <errno.h>
#include <stdio.h>

#include "tests/web/script.h"

int main(int argc, char **argv)
{
    struct script *s = NULL;
    struct chat_encoding chat;
    struct error err;
    int rc = argc < 2 ? error_set(&err, -EINVAL, "usage: scripted-server DIR [v31]")
                      : script_open(&s, argv[1], 1000000, &err); // tokens come one by one, as from a model
    if (!rc)
        rc = chat_encoding_init(&chat, script_tokenizer(s), script_config(s)->bos_id,
                                script_config(s)->eos_id[0], &err);
    if (!rc) {
        if (argc > 2) chat.tools = CHAT_TOOLS_V31;
        const struct http_options o = {.listen = "127.0.0.1:0",
                                       .model_name = "script",
                                       .lanes = SCRIPT_LANES,
                                       .queue = 16,
                                       .connections = 64,
                                       .max_body = 4u << 20,
                                       .request_timeout_s = 10,
                                       .idle_timeout_s = 10,
                                       .drain_timeout_s = 5,
                                       .config = script_config(s),
                                       .tokenizer = script_tokenizer(s),
                                       .chat = &chat,
                                       .sampling = SAMPLING_GREEDY,
                                       .load = script_load,
                                       .ctx = s};
        rc = http_serve(&o, &err);
    }
    if (rc) fprintf(stderr, "scripted-server: %s\n", err.text);
    script_close(s);
    return rc ? 1 : 0;
}
