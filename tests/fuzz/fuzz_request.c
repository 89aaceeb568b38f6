/* fuzz_request.c: request bodies from arbitrary bytes: JSON, parameters, messages, prompt ids. What is
 * accepted must be something the engine can run; what is refused must say why in one JSON error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/http/request_body.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "not so: %s\n", what);
    abort();
}

static struct http_options *options(void)
{
    static struct http_options o;
    static struct model_config config;
    static struct tokenizer *tokenizer;
    static struct chat_encoding chat;
    struct error err;
    if (o.config) return &o;
    require(!model_config_read(&config, SOURCE_DIR "/models/duckling", &err), "config");
    require(!tokenizer_open(&tokenizer, SOURCE_DIR "/models/duckling", &err), "tokenizer");
    require(!chat_encoding_init(&chat, tokenizer, config.bos_id, config.eos_id[0], &err), "chat");
    o = (struct http_options){
        .config = &config, .tokenizer = tokenizer, .chat = &chat, .sampling = SAMPLING_GREEDY};
    return &o;
}

static void check_job(const struct http_options *o, const struct job *j)
{
    struct error err;
    require(j->prompt.count > 0 && j->prompt.count < o->config->max_positions, "a prompt that fits");
    for (size_t i = 0; i < j->prompt.count; i++)
        require(j->prompt.id[i] >= 0 && (uint32_t)j->prompt.id[i] < o->config->vocab_size, "known ids");
    require(!sampling_check(&j->sampling, o->config->vocab_size, &err), "sampling that can be done");
    require(j->stop && j->top_logprobs <= JOB_MAX_TOP_LOGPROBS, "stop strings and logprobs");
}

static void check_problem(const struct api_problem *p)
{
    struct buffer b = {0};
    require(p->status >= 400 && p->text.text[0] && !strchr(p->text.text, '\n'), "one line says why");
    api_problem_json(&b, p);
    cJSON *json = cJSON_Parse(b.data);
    require(json != NULL, "an error is JSON");
    cJSON_Delete(json);
    buffer_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct http_options *o = options();
    struct request r = {0};
    buffer_append(&r.body, data, size);
    for (int chat = 0; chat < 2; chat++) {
        struct completion_request q = {.chat = chat};
        struct api_problem p = {0};
        cJSON *body = NULL;
        int rc = body_parse(&r, &body, &p);
        if (!rc) rc = completion_read(o, body, &q, &p);
        cJSON_Delete(body);
        if (rc)
            check_problem(&p);
        else
            check_job(o, q.job);
        job_free(q.job);
    }
    buffer_free(&r.body);
    return 0;
}
