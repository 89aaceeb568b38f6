/* scripted_server.c: the HTTP server in front of the scripted model.
 *
 * usage: scripted-server DIR [v31 | slow | halting]
 * slow: it loads for two seconds, and stops at 10 and at 95 % until SIGUSR1 comes.
 * halting: the second token of an answer comes after two minutes. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "host/util/log.h"
#include "tests/web/script.h"

enum { STEPS = 20, FIRST_STOP = 2, SECOND_STOP = 19 };

static volatile sig_atomic_t released;

static void release(int number)
{
    (void)number;
    released++;
}

static int load_slowly(void *ctx, struct engine **out, struct error *err)
{
    const struct timespec step = {.tv_nsec = 100000000};
    struct progress p;
    progress_begin(&p, "loading", "MB", STEPS, 1);
    for (int i = 0; i < STEPS; i++) {
        const struct progress_part slowest = {.name = "duck \"3\"", .amount = {i, 10, 5}};
        progress_update_slowest(&p, i, i < STEPS / 2 ? &slowest : NULL);
        do nanosleep(&step, NULL);
        while ((i == FIRST_STOP && released < 1) || (i == SECOND_STOP && released < 2));
    }
    progress_end(&p);
    return script_load(ctx, out, err);
}

int main(int argc, char **argv)
{
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = release, .sa_flags = SA_RESTART}, NULL);
    struct script *s = NULL;
    struct chat_encoding chat;
    struct error err;
    const char *how = argc > 2 ? argv[2] : "";
    // Tokens come one by one, as from a model.
    const long pace_ns = strcmp(how, "halting") ? 1000000 : 120000000000;
    int rc = argc < 2 ? error_set(&err, -EINVAL, "usage: scripted-server DIR [v31 | slow | halting]")
                      : script_open(&s, argv[1], pace_ns, &err);
    if (!rc)
        rc = chat_encoding_init(&chat, script_tokenizer(s), script_config(s)->bos_id,
                                script_config(s)->eos_id[0], &err);
    if (!rc) {
        if (!strcmp(how, "v31")) chat.tools = CHAT_TOOLS_V31;
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
                                       .load = strcmp(how, "slow") ? script_load : load_slowly,
                                       .ctx = s};
        rc = http_serve(&o, &err);
    }
    if (rc) fprintf(stderr, "scripted-server: %s\n", err.text);
    script_close(s);
    return rc ? 1 : 0;
}
