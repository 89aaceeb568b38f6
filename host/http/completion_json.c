/* completion_json.c: what completions look like in JSON: chunks of a stream and whole answers. */
#include <math.h>
#include <string.h>

#include "host/http/exchange.h"

static void begin_json(struct buffer *b, const struct exchange *x, const char *object)
{
    const char *name = x->server->o->model_name;
    buffer_printf(b, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", x->id, object,
                  (long long)x->created);
    buffer_json_string(b, name, strlen(name));
    buffer_printf(b, ",\"system_fingerprint\":\"fp_%llx\",", (unsigned long long)x->server->started_at);
}

/* ---- log-probabilities ---- */

static void put_token(struct buffer *b, const struct exchange *x, int32_t id, size_t *length)
{
    bool added;
    const char *text = tokenizer_token(x->server->o->tokenizer, id, length, &added);
    if (!text) *length = 0;
    buffer_json_string(b, text ? text : "", *length);
}

static void put_chat_logprob(struct buffer *b, const struct exchange *x, int32_t id, float logprob)
{
    size_t length;
    bool added;
    buffer_text(b, "{\"token\":");
    put_token(b, x, id, &length);
    buffer_text(b, ",\"logprob\":");
    buffer_json_number(b, (double)logprob, 6);
    buffer_text(b, ",\"bytes\":[");
    const char *text = tokenizer_token(x->server->o->tokenizer, id, &length, &added);
    for (size_t i = 0; text && i < length; i++)
        buffer_printf(b, i ? ",%u" : "%u", (unsigned)(unsigned char)text[i]);
    buffer_text(b, "]");
}

static void put_chat_logprobs(struct buffer *b, const struct exchange *x, const struct job_output *out)
{
    buffer_text(b, "{\"content\":[");
    for (size_t i = 0; i < out->logprob_count; i++) {
        const struct token_logprob *l = &out->logprob[i];
        if (i) buffer_text(b, ",");
        put_chat_logprob(b, x, l->id, l->logprob);
        buffer_text(b, ",\"top_logprobs\":[");
        for (uint32_t k = 0; k < l->top_count; k++) {
            if (k) buffer_text(b, ",");
            put_chat_logprob(b, x, l->top_id[k], l->top[k]);
            buffer_text(b, "}");
        }
        buffer_text(b, "]}");
    }
    buffer_text(b, "],\"refusal\":null}");
}

static void put_text_logprobs(struct buffer *b, struct exchange *x, const struct job_output *out)
{
    size_t length;
    buffer_text(b, "{\"tokens\":[");
    for (size_t i = 0; i < out->logprob_count; i++) {
        if (i) buffer_text(b, ",");
        put_token(b, x, out->logprob[i].id, &length);
    }
    buffer_text(b, "],\"token_logprobs\":[");
    for (size_t i = 0; i < out->logprob_count; i++) {
        if (i) buffer_text(b, ",");
        buffer_json_number(b, (double)out->logprob[i].logprob, 6);
    }
    buffer_text(b, "],\"top_logprobs\":[");
    for (size_t i = 0; i < out->logprob_count; i++) {
        const struct token_logprob *l = &out->logprob[i];
        buffer_text(b, i ? ",{" : "{");
        for (uint32_t k = 0; k < l->top_count; k++) {
            if (k) buffer_text(b, ",");
            put_token(b, x, l->top_id[k], &length);
            buffer_text(b, ":");
            buffer_json_number(b, (double)l->top[k], 6);
        }
        buffer_text(b, "}");
    }
    buffer_text(b, "],\"text_offset\":[");
    for (size_t i = 0; i < out->logprob_count; i++) {
        bool added;
        buffer_printf(b, i ? ",%zu" : "%zu", x->text_offset);
        if (tokenizer_token(x->server->o->tokenizer, out->logprob[i].id, &length, &added))
            x->text_offset += length;
    }
    buffer_text(b, "]}");
}

static void put_logprobs(struct buffer *b, struct exchange *x, const struct job_output *out)
{
    if (!x->job->logprobs || !out)
        buffer_text(b, "null");
    else if (x->chat)
        put_chat_logprobs(b, x, out);
    else
        put_text_logprobs(b, x, out);
}

static void put_finish(struct buffer *b, const char *finish_reason)
{
    if (finish_reason)
        buffer_printf(b, ",\"finish_reason\":\"%s\"}]", finish_reason);
    else
        buffer_text(b, ",\"finish_reason\":null}]");
}

static void put_member(struct buffer *b, const char *key, const struct buffer *text, bool *first)
{
    if (text->length == 0) return;
    buffer_printf(b, "%s\"%s\":", *first ? "" : ",", key);
    buffer_json_string(b, text->data, text->length);
    *first = false;
}

/* ---- calls of tools ---- */

static void put_call_id(struct buffer *b, const struct exchange *x, uint32_t index)
{
    const char *unique = strchr(x->id, '-');
    buffer_printf(b, "\"id\":\"call_%s-%u\",\"type\":\"function\",", unique ? unique + 1 : x->id, index);
}

static void put_function(struct buffer *b, const struct call_piece *piece)
{
    buffer_text(b, "\"function\":{");
    if (piece->name) {
        buffer_text(b, "\"name\":");
        buffer_json_string(b, piece->name, strlen(piece->name));
        buffer_text(b, ",");
    }
    buffer_text(b, "\"arguments\":");
    buffer_json_string(b, piece->arguments.data ? piece->arguments.data : "", piece->arguments.length);
    buffer_text(b, "}}");
}

/* In a stream a call's pieces say which one they belong to; its id and name come once. */
static void put_calls(struct buffer *b, const struct exchange *x, const struct job_output *out, bool *first)
{
    if (!out->call_count) return;
    buffer_text(b, *first ? "\"tool_calls\":[" : ",\"tool_calls\":[");
    for (size_t i = 0; i < out->call_count; i++) {
        const struct call_piece *piece = &out->call[i];
        buffer_text(b, i ? ",{" : "{");
        if (x->stream) buffer_printf(b, "\"index\":%u,", piece->index);
        if (piece->name) put_call_id(b, x, piece->index);
        put_function(b, piece);
    }
    buffer_text(b, "]");
    *first = false;
}

/* ---- a stream ---- */

static void end_event(struct buffer *b)
{
    buffer_text(b, "}\n\n");
}

void completion_delta(struct buffer *b, struct exchange *x, const char *role, const struct job_output *out,
                      const char *finish_reason)
{
    bool first = true;
    buffer_text(b, "data: ");
    begin_json(b, x, x->chat ? "chat.completion.chunk" : "text_completion");
    if (x->chat) {
        buffer_text(b, "\"choices\":[{\"index\":0,\"delta\":{");
        if (role) {
            buffer_printf(b, "\"role\":\"%s\",\"content\":\"\"", role);
            first = false;
        }
        if (out) put_member(b, "reasoning_content", &out->reasoning, &first);
        if (out) put_member(b, "content", &out->content, &first);
        if (out) put_calls(b, x, out, &first);
        buffer_text(b, "}");
    } else {
        buffer_text(b, "\"choices\":[{\"index\":0,\"text\":");
        buffer_json_string(b, out && out->content.data ? out->content.data : "",
                           out ? out->content.length : 0);
    }
    buffer_text(b, ",\"logprobs\":");
    put_logprobs(b, x, out && out->logprob_count ? out : NULL);
    put_finish(b, finish_reason);
    if (x->include_usage) buffer_text(b, ",\"usage\":null");
    end_event(b);
}

static void put_usage(struct buffer *b, const struct job_output *last)
{
    const struct generation_result *r = &last->result;
    buffer_printf(b,
                  "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":%u},"
                  "\"completion_tokens_details\":{\"reasoning_tokens\":%u}}",
                  r->prompt_tokens, r->generated_tokens, r->prompt_tokens + r->generated_tokens,
                  r->cached_tokens, last->reasoning_tokens);
    double prefilled = r->prompt_tokens - r->cached_tokens; // what was not measured is null
    bool decoded = r->generated_tokens > 1 && r->decode_ms > 0;
    buffer_text(b, ",\"timings\":{\"ttft_ms\":");
    buffer_json_number(b, r->ttft_ms, 2);
    buffer_text(b, ",\"prefill_tok_s\":");
    buffer_json_number(b, r->prefill_ms > 0 ? 1e3 * prefilled / r->prefill_ms : NAN, 2);
    buffer_text(b, ",\"decode_tok_s\":");
    buffer_json_number(b, decoded ? 1e3 * (r->generated_tokens - 1) / r->decode_ms : NAN, 2);
    buffer_printf(b, ",\"drafts_proposed\":%u,\"drafts_accepted\":%u}", r->drafts_proposed,
                  r->drafts_accepted);
}

void completion_usage_chunk(struct buffer *b, const struct exchange *x, const struct job_output *last)
{
    buffer_text(b, "data: ");
    begin_json(b, x, x->chat ? "chat.completion.chunk" : "text_completion");
    buffer_text(b, "\"choices\":[],");
    put_usage(b, last);
    end_event(b);
}

/* ---- a whole answer ---- */

void completion_whole(struct buffer *b, struct exchange *x, const struct job_output *last,
                      const char *finish_reason)
{
    const struct job_output *w = &x->whole;
    begin_json(b, x, x->chat ? "chat.completion" : "text_completion");
    if (x->chat) {
        bool first = false;
        buffer_text(b, "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":");
        if (w->call_count && !w->content.length)
            buffer_text(b, "null");
        else
            buffer_json_string(b, w->content.data ? w->content.data : "", w->content.length);
        put_member(b, "reasoning_content", &w->reasoning, &first);
        put_calls(b, x, w, &first);
        buffer_text(b, ",\"refusal\":null}");
    } else {
        buffer_text(b, "\"choices\":[{\"index\":0,\"text\":");
        buffer_json_string(b, w->content.data ? w->content.data : "", w->content.length);
    }
    buffer_text(b, ",\"logprobs\":");
    put_logprobs(b, x, w);
    put_finish(b, finish_reason);
    buffer_text(b, ",");
    put_usage(b, last);
    buffer_text(b, "}");
}
