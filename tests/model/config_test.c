/* config_test.c: config.json of published models, and of broken ones made from it by a replacement each. */
#include "tests/model/expect.h"

#include "host/model/config.h"

static char *v32, *v3; // configs/deepseek-v3.2.json, -v3.json

static char *load(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s: cannot open", path);
    char *text = calloc(1, 65536);
    assert_true(fread(text, 1, 65535, f) > 0);
    fclose(f);
    return text;
}
static int setup(void **state)
{
    (void)state;
    v32 = load(SOURCE_DIR "/configs/deepseek-v3.2.json");
    v3 = load(SOURCE_DIR "/configs/deepseek-v3.json");
    return 0;
}
static int teardown(void **state)
{
    (void)state;
    free(v32);
    free(v3);
    return 0;
}

/* `text` with the only occurrence of `old` replaced. */
static char *replace(const char *text, const char *old, const char *new)
{
    const char *at = strstr(text, old);
    if (!at || strstr(at + 1, old)) fail_msg("%s does not occur exactly once", old);
    char *out = calloc(1, strlen(text) + strlen(new) + 1);
    memcpy(out, text, (size_t)(at - text));
    strcat(strcat(out, new), at + strlen(old));
    return out;
}

static struct model_config parse_good(const char *text)
{
    struct model_config c;
    struct error err = {""};
    if (model_config_parse(&c, text, strlen(text), "config.json", &err)) fail_msg("%s", err.text);
    return c;
}

static void published_v32(void **state)
{
    (void)state;
    struct model_config c = parse_good(v32);
    assert_int_equal(c.arch, MODEL_DEEPSEEK_V32);
    assert_int_equal(c.vocab_size, 129280);
    assert_int_equal(c.hidden_size, 7168);
    assert_int_equal(c.layers, 61);
    assert_int_equal(c.mtp_layers, 1);
    assert_int_equal(c.max_positions, 163840);
    assert_int_equal(c.heads, 128);
    assert_int_equal(c.q_lora_rank, 1536);
    assert_int_equal(c.kv_lora_rank, 512);
    assert_int_equal(c.qk_nope_dim, 128);
    assert_int_equal(c.qk_rope_dim, 64);
    assert_int_equal(c.v_dim, 128);
    assert_int_equal(c.index_heads, 64);
    assert_int_equal(c.index_head_dim, 128);
    assert_int_equal(c.index_topk, 2048);
    assert_int_equal(c.first_dense_layers, 3);
    assert_int_equal(c.dense_width, 18432);
    assert_int_equal(c.experts, 256);
    assert_int_equal(c.shared_experts, 1);
    assert_int_equal(c.expert_width, 2048);
    assert_int_equal(c.top_k, 8);
    assert_int_equal(c.groups, 8);
    assert_int_equal(c.top_groups, 4);
    assert_true(c.norm_topk_prob);
    assert_true(c.routed_scale == 2.5f);
    assert_true(c.rms_norm_eps == 1e-6f);
    assert_true(c.rope_theta == 10000.0f);
    assert_true(c.yarn);
    assert_true(c.yarn_factor == 40.0f && c.yarn_beta_fast == 32.0f && c.yarn_beta_slow == 1.0f);
    assert_true(c.yarn_mscale == 1.0f && c.yarn_mscale_all_dim == 1.0f);
    assert_int_equal(c.yarn_original_positions, 4096);
    assert_int_equal(c.bos_id, 0);
    assert_int_equal(c.eos_count, 1);
    assert_int_equal(c.eos_id[0], 1);
    assert_true(model_layer_is_dense(&c, 2));
    assert_false(model_layer_is_dense(&c, 3));
}

static void published_v3(void **state)
{
    (void)state;
    struct model_config c = parse_good(v3), like = parse_good(v32);
    assert_int_equal(c.index_topk, 0);
    like.arch = MODEL_DEEPSEEK_V3; // apart from the indexer the two models have one shape
    like.index_heads = like.index_head_dim = like.index_topk = 0;
    assert_memory_equal(&c, &like, sizeof c);
}

static const char rope_scaling[] =
    "\"rope_scaling\": {\"beta_fast\": 32, \"beta_slow\": 1, \"factor\": 40, \"mscale\": 1.0, "
    "\"mscale_all_dim\": 1.0, "
    "\"original_max_position_embeddings\": 4096, \"type\": \"yarn\"},\n  \"rope_theta\": 10000";

static void newer_rope_parameters(void **state)
{
    (void)state;
    char *text =
        replace(v32, rope_scaling,
                "\"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 40.0, "
                "\"original_max_position_embeddings\": 4096, \"mscale\": 1.0, \"mscale_all_dim\": 1.0}");
    struct model_config c = parse_good(text), like = parse_good(v32);
    assert_memory_equal(&c, &like, sizeof c);
    free(text);
}

static void without_yarn(void **state)
{
    const char *instead = *state;
    char *text = replace(v32, rope_scaling, instead);
    struct model_config c = parse_good(text);
    assert_false(c.yarn);
    assert_true(c.rope_theta == 50000.0f);
    free(text);
}

static void optional_keys(void **state)
{
    (void)state;
    char *a = replace(v32, "\"num_nextn_predict_layers\": 1,", ""),
         *b = replace(a, "\"n_shared_experts\": 1", "\"n_shared_experts\": null");
    char *c = replace(b, "\"bos_token_id\": 0,", ""),
         *d = replace(c, "\"eos_token_id\": 1", "\"eos_token_id\": [1, 7, 1, 9]");
    struct model_config m = parse_good(d);
    assert_int_equal(m.mtp_layers, 0);
    assert_int_equal(m.shared_experts, 0);
    assert_int_equal(m.bos_id, -1);
    assert_int_equal(m.eos_count, 3);
    assert_int_equal(m.eos_id[2], 9);
    free(a), free(b), free(c), free(d);
}

static const struct bad {
    const char *name, *old, *new, *expected[EXPECT_PARTS];
} bads[] = {
    {"unknown architecture",
     "\"deepseek_v32\"",
     "\"llama\"",
     {"config.json", "model_type", "\"llama\"", "deepseek_v32"}},
    {"no model_type", "\"model_type\": \"deepseek_v32\",", "", {"model_type is missing"}},
    {"model_type a number", "\"deepseek_v32\"", "3", {"model_type is 3"}},
    {"other class",
     "DeepseekV32ForCausalLM",
     "DeepseekV3ForCausalLM",
     {"architectures", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"}},
    {"hidden missing", "\"hidden_size\": 7168,", "", {"config.json", "key hidden_size is missing"}},
    {"hidden null", "\"hidden_size\": 7168", "\"hidden_size\": null", {"key hidden_size is missing"}},
    {"hidden a string",
     "\"hidden_size\": 7168",
     "\"hidden_size\": \"7168\"",
     {"hidden_size is \"7168\"", "8 to 65536"}},
    {"hidden not a multiple of 8",
     "\"hidden_size\": 7168",
     "\"hidden_size\": 7164",
     {"hidden_size is 7164", "multiple of 8"}},
    {"hidden fractional",
     "\"hidden_size\": 7168",
     "\"hidden_size\": 7168.5",
     {"hidden_size is 7168.5", "integer"}},
    {"hidden huge",
     "\"hidden_size\": 7168",
     "\"hidden_size\": 1e300",
     {"hidden_size is 1.0000000000000001e+300", "65536"}},
    {"hidden infinite", "\"hidden_size\": 7168", "\"hidden_size\": 1e999", {"hidden_size is inf", "65536"}},
    {"hidden beyond 32 bits",
     "\"hidden_size\": 7168",
     "\"hidden_size\": 4294974464",
     {"4294974464", "65536"}},
    {"layers negative",
     "\"num_hidden_layers\": 61",
     "\"num_hidden_layers\": -61",
     {"num_hidden_layers is -61", "1 to 1000"}},
    {"vocab zero", "\"vocab_size\": 129280", "\"vocab_size\": 0", {"vocab_size is 0", "1048576"}},
    {"heads absurd",
     "\"num_attention_heads\": 128",
     "\"num_attention_heads\": 1000000",
     {"num_attention_heads is 1000000", "1024"}},
    {"kv heads differ",
     "\"num_key_value_heads\": 128",
     "\"num_key_value_heads\": 8",
     {"num_key_value_heads is 8", "128"}},
    {"rope dim odd",
     "\"qk_rope_head_dim\": 64",
     "\"qk_rope_head_dim\": 63",
     {"qk_rope_head_dim is 63", "even"}},
    {"index dim odd",
     "\"index_head_dim\": 128",
     "\"index_head_dim\": 127",
     {"index_head_dim is 127", "even"}},
    {"index dim below rope",
     "\"index_head_dim\": 128",
     "\"index_head_dim\": 32",
     {"index_head_dim is 32", "64"}},
    {"index top-k missing", "\"index_topk\": 2048,", "", {"index_topk is missing"}},
    {"expert width",
     "\"moe_intermediate_size\": 2048",
     "\"moe_intermediate_size\": 2044",
     {"moe_intermediate_size is 2044", "multiple of 8"}},
    {"experts not divisible",
     "\"n_routed_experts\": 256",
     "\"n_routed_experts\": 255",
     {"n_routed_experts is 255", "n_group, 8"}},
    {"groups of one", "\"n_group\": 8", "\"n_group\": 256", {"256", "1 in a group", "at least 2"}},
    {"groups zero", "\"n_group\": 8", "\"n_group\": 0", {"n_group is 0"}},
    {"groups kept", "\"topk_group\": 4", "\"topk_group\": 9", {"topk_group is 9", "n_group, 8"}},
    {"top-k too many",
     "\"num_experts_per_tok\": 8",
     "\"num_experts_per_tok\": 129",
     {"num_experts_per_tok is 129", "64"}},
    {"dense layers",
     "\"first_k_dense_replace\": 3",
     "\"first_k_dense_replace\": 62",
     {"first_k_dense_replace is 62", "61"}},
    {"eps negative",
     "\"rms_norm_eps\": 1e-06",
     "\"rms_norm_eps\": -1",
     {"rms_norm_eps is -1", "1e-12 to 0.01"}},
    {"scale a string",
     "\"routed_scaling_factor\": 2.5",
     "\"routed_scaling_factor\": \"2.5\"",
     {"routed_scaling_factor is \"2.5\""}},
    {"norm_topk_prob", "\"norm_topk_prob\": true", "\"norm_topk_prob\": 1", {"norm_topk_prob is 1"}},
    {"hidden_act", "\"silu\"", "\"gelu\"", {"hidden_act is \"gelu\"", "\"silu\""}},
    {"scoring_func", "\"sigmoid\"", "\"softmax\"", {"scoring_func is \"softmax\"", "\"sigmoid\""}},
    {"topk_method", "\"noaux_tc\"", "\"greedy\"", {"topk_method is \"greedy\"", "\"noaux_tc\""}},
    {"attention_bias",
     "\"attention_bias\": false",
     "\"attention_bias\": true",
     {"attention_bias is true", "false"}},
    {"moe_layer_freq",
     "\"moe_layer_freq\": 1",
     "\"moe_layer_freq\": 2",
     {"moe_layer_freq is 2", "supported: 1"}},
    {"tied embeddings",
     "\"tie_word_embeddings\": false",
     "\"tie_word_embeddings\": true",
     {"tie_word_embeddings is true", "false"}},
    {"rope type",
     "\"type\": \"yarn\"",
     "\"type\": \"linear\"",
     {"rope_scaling.type is \"linear\"", "\"yarn\""}},
    {"rope type missing", ", \"type\": \"yarn\"", "", {"rope_scaling.rope_type is missing", "\"yarn\""}},
    {"rope types differ",
     "\"type\": \"yarn\"",
     "\"type\": \"yarn\", \"rope_type\": \"linear\"",
     {"\"yarn\"", "\"linear\""}},
    {"yarn factor", "\"factor\": 40", "\"factor\": 0", {"rope_scaling.factor is 0", "1 to 10000"}},
    {"yarn positions missing",
     "\"original_max_position_embeddings\": 4096, ",
     "",
     {"rope_scaling.original_max_position_embeddings is missing"}},
    {"yarn betas", "\"beta_fast\": 32", "\"beta_fast\": 0.5", {"beta_fast is 0.5", "beta_slow, 1"}},
    {"yarn attention_factor",
     "\"factor\": 40",
     "\"factor\": 40, \"attention_factor\": 1.5",
     {"rope_scaling.attention_factor is 1.5"}},
    {"rope_scaling a list",
     rope_scaling,
     "\"rope_theta\": 1e4, \"rope_scaling\": []",
     {"rope_scaling is an array"}},
    {"rope_theta missing", ",\n  \"rope_theta\": 10000", "", {"rope_theta is missing"}},
    {"block size", "[128, 128]", "[64, 128]", {"weight_block_size is [64, 128]", "[128, 128]"}},
    {"block size a number", "[128, 128]", "128", {"weight_block_size is 128", "[128, 128]"}},
    {"quant method", "\"fp8\"", "\"awq\"", {"quantization_config.quant_method is \"awq\"", "\"fp8\""}},
    {"quantization fmt", "\"e4m3\"", "\"e5m2\"", {"quantization_config.fmt is \"e5m2\"", "\"e4m3\""}},
    {"eos beyond vocab",
     "\"eos_token_id\": 1",
     "\"eos_token_id\": 129280",
     {"eos_token_id is 129280", "129280"}},
    {"eos a string", "\"eos_token_id\": 1", "\"eos_token_id\": [\"x\"]", {"eos_token_id is \"x\""}},
    {"eos too many",
     "\"eos_token_id\": 1",
     "\"eos_token_id\": [1,2,3,4,5,6,7,8,9]",
     {"eos_token_id: 9", "8 ids"}},
    {"bos beyond vocab",
     "\"bos_token_id\": 0",
     "\"bos_token_id\": 200000",
     {"bos_token_id is 200000", "129280"}},
    {"key twice",
     "\"hidden_size\": 7168",
     "\"hidden_size\": 7168, \"hidden_size\": 64",
     {"config.json", "\"hidden_size\"", "twice"}},
    {"rubbish after the object",
     "\"vocab_size\": 129280\n}",
     "\"vocab_size\": 129280\n}}",
     {"JSON value ends", "follow"}},
    {"cut", "\"vocab_size\": 129280\n}", "\"vocab_size\": 1292", {"config.json", "not valid JSON"}},
    {"comma missing", "7168,", "7168", {"not valid JSON at byte"}},
    {"nested",
     "\"use_cache\": true",
     "\"use_cache\": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[0]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
     {"nested 33 deep"}},
};

static void refused(void **state)
{
    const struct bad *b = *state;
    char *text = replace(v32, b->old, b->new);
    struct model_config c;
    struct error err = {""};
    int rc = model_config_parse(&c, text, strlen(text), "config.json", &err);
    free(text);
    expect_refusal(rc, &err, b->expected);
}

/* Takes two replacements: a group kept of one, and groups of two. */
static void top_k_beyond_experts_kept(void **state)
{
    (void)state;
    char *one = replace(v32, "\"topk_group\": 4", "\"topk_group\": 1");
    char *text = replace(one, "\"n_routed_experts\": 256", "\"n_routed_experts\": 16");
    struct model_config c;
    struct error err = {""};
    int rc = model_config_parse(&c, text, strlen(text), "config.json", &err);
    free(one);
    free(text);
    expect_refusal(rc, &err,
                   (const char *const[EXPECT_PARTS]){"num_experts_per_tok is 8", "have only 2 experts"});
}

int main(void)
{
    struct CMUnitTest tests[16 + sizeof bads / sizeof *bads] = {
        cmocka_unit_test(published_v32),
        cmocka_unit_test(published_v3),
        cmocka_unit_test(newer_rope_parameters),
        {"rope_scaling null", without_yarn, NULL, NULL,
         (void *)(uintptr_t) "\"rope_scaling\": null, \"rope_theta\": 50000"},
        {"rope_type default", without_yarn, NULL, NULL,
         (void *)(uintptr_t) "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 50000}"},
        cmocka_unit_test(optional_keys),
        cmocka_unit_test(top_k_beyond_experts_kept),
    };
    size_t n = 7;
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++)
        tests[n++] = (struct CMUnitTest){bads[i].name, refused, NULL, NULL, (void *)(uintptr_t)&bads[i]};
    return _cmocka_run_group_tests("model-config", tests, n, setup, teardown);
}
