// pretokenizer.c: the stages as a recursion, so that no list of pieces is ever built.
#include "host/text/pretokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "host/text/regex_dialect.h"
#include "host/text/utf8.h"

/* A runaway pattern ends in an error, not in a hang or in exhausted memory. The limits are far above what a
 * tokenizer's patterns need: a match over a run of millions of characters backtracks once per character. */
#define MATCH_LIMIT 100000000u
#define HEAP_LIMIT_KIB (256u * 1024u)
#define JIT_STACK_START ((size_t)32 << 10)
#define JIT_STACK_MAX ((size_t)64 << 20)

int pretokenizer_add(struct pretokenizer *p, const char *pattern, bool literal, bool drop_matches,
                     bool drop_gaps, struct error *err)
{
    if (p->stages == PRETOKENIZER_STAGES)
        return error_set(err, -EINVAL, "pre_tokenizer: more than %d stages", PRETOKENIZER_STAGES);
    if (*pattern == '\0') return error_set(err, -EINVAL, "pre_tokenizer: Split with an empty pattern");
    char *rewritten = NULL;
    int rc = literal ? 0 : regex_to_pcre2(pattern, &rewritten, err);
    if (rc) return rc;

    // Oniguruma's . excludes LF only, whatever newline convention the library was built with.
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (context) pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int code = 0;
    PCRE2_SIZE where = 0;
    uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C);
    pcre2_code *compiled = context ? pcre2_compile((PCRE2_SPTR)(literal ? pattern : rewritten),
                                                   PCRE2_ZERO_TERMINATED, options, &code, &where, context)
                                   : NULL;
    pcre2_compile_context_free(context);
    free(rewritten);
    if (!context) return error_set(err, -ENOMEM, "out of memory for a regular expression");
    if (!compiled) {
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(code, why, sizeof why);
        return error_set(err, -EINVAL, "pre_tokenizer: regular expression '%.200s': %s", pattern,
                         (char *)why);
    }
    // Without a JIT for this machine the interpreter finds the same matches.
    pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
    p->stage[p->stages].code = compiled;
    p->stage[p->stages].drop_matches = drop_matches;
    p->stage[p->stages].drop_gaps = drop_gaps;
    p->stages++;
    return 0;
}

void pretokenizer_free(struct pretokenizer *p)
{
    for (size_t i = 0; i < p->stages; i++) pcre2_code_free(p->stage[i].code);
    *p = (struct pretokenizer){0};
}

int splitting_open(struct splitting *s, const struct pretokenizer *p, piece_fn *fn, void *arg,
                   struct error *err)
{
    *s = (struct splitting){.pretokenizer = p, .fn = fn, .arg = arg, .err = err};
    s->context = pcre2_match_context_create(NULL);
    s->jit_stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, NULL);
    bool complete = s->context && s->jit_stack;
    for (size_t i = 0; i < p->stages && complete; i++)
        complete = (s->match[i] = pcre2_match_data_create(1, NULL)) != NULL;
    if (!complete) {
        splitting_close(s);
        return error_set(err, -ENOMEM, "out of memory for the pre-tokenizer");
    }
    pcre2_set_match_limit(s->context, MATCH_LIMIT);
    pcre2_set_depth_limit(s->context, MATCH_LIMIT);
    pcre2_set_heap_limit(s->context, HEAP_LIMIT_KIB);
    pcre2_jit_stack_assign(s->context, NULL, s->jit_stack);
    return 0;
}

void splitting_close(struct splitting *s)
{
    for (size_t i = 0; i < PRETOKENIZER_STAGES; i++) pcre2_match_data_free(s->match[i]);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->jit_stack);
    *s = (struct splitting){0};
}

static int match_failed(struct splitting *s, size_t stage, int code, size_t at, size_t length)
{
    PCRE2_UCHAR why[128] = "";
    pcre2_get_error_message(code, why, sizeof why);
    return error_set(s->err, -EINVAL, "pre_tokenizer stage %zu, at byte %zu of a piece of %zu: %s", stage, at,
                     length, (char *)why);
}

static int run_stage(struct splitting *s, size_t stage, const char *text, size_t length)
{
    if (length == 0) return 0;
    if (stage == s->pretokenizer->stages) return s->fn(s->arg, text, length, s->err);
    bool drop_matches = s->pretokenizer->stage[stage].drop_matches;
    bool drop_gaps = s->pretokenizer->stage[stage].drop_gaps;
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(s->match[stage]);

    size_t done = 0, search = 0, last_end = SIZE_MAX;
    while (search <= length) {
        int rc = pcre2_match(s->pretokenizer->stage[stage].code, (PCRE2_SPTR)text, length, search,
                             PCRE2_NO_UTF_CHECK, s->match[stage], s->context);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc < 0) return match_failed(s, stage, rc, search, length);
        size_t start = found[0], end = found[1];
        if (start == end && end == last_end) { // an empty match where one just ended does not count
            search += search < length
                          ? (size_t)utf8_step((const unsigned char *)text + search, length - search)
                          : 1;
            continue;
        }
        rc = drop_gaps ? 0 : run_stage(s, stage + 1, text + done, start - done);
        if (!rc && !drop_matches) rc = run_stage(s, stage + 1, text + start, end - start);
        if (rc) return rc;
        done = search = last_end = end;
    }
    return drop_gaps ? 0 : run_stage(s, stage + 1, text + done, length - done);
}

int splitting_run(struct splitting *s, const char *text, size_t length)
{
    return run_stage(s, 0, text, length);
}
