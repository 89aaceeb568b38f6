/* chat_deepseek_test.c: a chat encoded with the real DeepSeek-V3 tokenizer, against ids known from the
 * model's publisher's own encoder. */
#include <string.h>

#include "host/text/chat_encoding.h"
#include "tests/text/text_support.h"

static void a_known_chat_has_the_known_ids(void **state)
{
    (void)state;
    static const int32_t expected[] = {0,      128803, 33310, 128804, 128799, 19923,  3,
                                       342,    1030,   22651, 4374,   1465,   16,     1,
                                       128803, 19,     13,    19,     127252, 128804, 128798};
    static const struct chat_message messages[] = {
        {.role = CHAT_USER, .content = "hello", .length = 5},
        {.role = CHAT_ASSISTANT, .content = "Hello! I am DeepSeek.", .length = 21},
        {.role = CHAT_USER, .content = "1+1=?", .length = 5},
    };
    struct tokenizer *t = open_tokenizer(DEEPSEEK_TOKENIZER);
    struct chat_encoding c;
    struct error err = {0};
    struct ids ids = {0};
    if (chat_encoding_init(&c, t, 0, 1, &err)) fail_msg("%s", err.text);
    // DeepSeek-V3's file still calls these ids place holders; V3.1 and V3.2 named them <think> and </think>.
    assert_int_equal(tokenizer_added(t, "<｜place▁holder▁no▁798｜>"), 128798);
    assert_int_equal(tokenizer_added(t, "<｜place▁holder▁no▁799｜>"), 128799);
    c.think = 128798;
    c.end_think = 128799;
    const struct chat_request chat = {.messages = messages, .count = 3, .thinking = true};
    if (chat_encode(&c, t, &chat, &ids, &err)) fail_msg("%s", err.text);
    assert_int_equal(ids.count, sizeof expected / sizeof *expected);
    assert_memory_equal(ids.id, expected, sizeof expected);
    ids_free(&ids);
    tokenizer_close(t);
}

int main(void)
{
    skip_without(DEEPSEEK_TOKENIZER);
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_known_chat_has_the_known_ids)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
