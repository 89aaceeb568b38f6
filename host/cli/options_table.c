/* options_table.c: the one table of options, and the one of commands. What is not here does not exist. */
#include "host/cli/options.h"

#define ENGINE                                                                                               \
    (COMMAND_GENERATE | COMMAND_CHAT | COMMAND_BENCH | COMMAND_LOGITS | COMMAND_EVAL | COMMAND_SERVE)
#define ALL (ENGINE | COMMAND_TOKENIZE | COMMAND_PLAN | COMMAND_FLOCK | COMMAND_DOCTOR)
#define ANSWERS (COMMAND_GENERATE | COMMAND_CHAT | COMMAND_BENCH)
#define AT(field) offsetof(struct options, field)

/* Kind, name, commands, where the value goes, the argument as the help calls it, and what it can be. */
#define FLAG(n, c, f) .kind = OPTION_FLAG, .name = (n), .commands = (c), .offset = AT(f)
#define ROW(k, n, c, f, a) .kind = OPTION_##k, .name = (n), .commands = (c), .offset = AT(f), .argument = (a)
#define TEXT(n, c, f, a) ROW(TEXT, n, c, f, a)
#define LIST(n, c, f, a) ROW(LIST, n, c, f, a)
#define CHOICE(n, c, f, a) ROW(CHOICE, n, c, f, a), .choices = (a)
#define WHOLE(n, c, f, a, l, h) ROW(WHOLE, n, c, f, a), .low = (l), .high = (h)
#define NUMBER(n, c, f, a, l, h) ROW(NUMBER, n, c, f, a), .low = (l), .high = (h)

const struct option_row options__table[] = {
    // generate
    {.heading = "What to answer",
     .letter = 'p',
     TEXT("prompt", COMMAND_GENERATE, prompt, "TEXT"),
     .source = 'p',
     .help = "the question, encoded as one chat message"},
    {TEXT("prompt-file", COMMAND_GENERATE, prompt_file, "F"), .source = 'p',
     .help = "the question from a file (- is stdin)"},
    {TEXT("tokens", COMMAND_GENERATE, tokens, "F"), .source = 'p',
     .help = "JSON array of token ids (- is stdin), used exactly as given: no chat encoding, no BOS"},
    {TEXT("system", COMMAND_GENERATE, system, "TEXT"), .help = "system text in front of the conversation"},
    {FLAG("think", COMMAND_GENERATE, think),
     .help = "let the model think first; its thoughts end with </think>"},
    {FLAG("raw", COMMAND_GENERATE, raw), .help = "no chat encoding: BOS, then the text as it is"},

    // tokenize
    {.heading = "What to encode",
     .letter = 'p',
     TEXT("prompt", COMMAND_TOKENIZE, prompt, "TEXT"),
     .source = 'p',
     .help = "the text to encode"},
    {TEXT("file", COMMAND_TOKENIZE, file, "F"), .source = 'p', .help = "the text from a file (- is stdin)"},
    {TEXT("decode", COMMAND_TOKENIZE, decode, "F"), .source = 'p',
     .help = "a JSON array of ids (- is stdin); prints exactly their text"},
    {FLAG("allow-special", COMMAND_TOKENIZE, allow_special),
     .help = "special tokens in the text become their ids; without it they are plain text"},

    // plan
    {.heading = "What to plan",
     TEXT("hardware", COMMAND_PLAN, hardware, "F"),
     .help = "JSON file that describes the hardware, as configs/hardware-reference.json does"},
    {TEXT("model", COMMAND_PLAN, model, "M"),
     .help = "folder of a checkpoint, or a config.json (default: the configs/deepseek-v3.2.json that comes "
             "with duckd)"},
    {CHOICE("scheme", COMMAND_PLAN, scheme, "reference|duckd"), .preset = 1,
     .help = "how a step is done: as the reference system did, or as duckd does (default duckd)"},
    {LIST("set", COMMAND_PLAN, set, "KEY=VALUE"),
     .help = "another value for one key, as in ducks=16 or acceptance=0.7; may be repeated (docs/plan.md)"},
    {TEXT("bench", COMMAND_PLAN, beside, "DIR"),
     .help =
         "project the cases of a run of bench from what it measured of its ducks by themselves, beside what "
         "they took"},
    {FLAG("json", COMMAND_PLAN, json), .help = "one JSON object with every figure and every input"},

    // logits, eval
    {.heading = "Input and output",
     TEXT("tokens", COMMAND_LOGITS, tokens, "F"),
     .help = "JSON array of token ids (- is stdin), used exactly as given"},
    {.heading = "Input",
     TEXT("tokens", COMMAND_EVAL, tokens, "F"),
     .help =
         "JSON array of token ids, or array of such arrays, each evaluated alone (- is stdin); ids are used "
         "exactly as given"},
    {.heading = "Input and output",
     TEXT("out", COMMAND_LOGITS, out, "F"),
     .help = "where the logits go (- is stdout): float32, little-endian, (positions, vocab)"},
    {WHOLE("last", COMMAND_LOGITS, last, "K", 1, 1e9), .help = "only the last K positions (default: all)"},
    {TEXT("dump", COMMAND_LOGITS, dump, "DIR"),
     .help = "also write DIR/goldens.safetensors and DIR/manifest.json: router, indexer, hidden states and "
             "MTP logits; indexer rows are the last K (default 4)"},

    // bench
    {.heading = "What to run",
     TEXT("suite", COMMAND_BENCH, suite, "F"),
     .help = "suite of prompts, JSON (default configs/suite-duckling.json)"},
    {TEXT("synthetic", COMMAND_BENCH, synthetic, "CONFIG"),
     .help =
         "no suite and no checkpoint: random weights of a config.json's shape, to time a model that is not "
         "there; texts mean nothing, and every output says synthetic"},
    {WHOLE("synthetic-layers", COMMAND_BENCH, synthetic_layers, "N", 1, 1000),
     .help =
         "only N dense and N expert layers have weights of their own, the others share them (default all)"},
    {WHOLE("synthetic-experts", COMMAND_BENCH, synthetic_experts, "N", 1, 100000),
     .help = "only N experts of a layer have weights of their own (default all)"},
    {WHOLE("prompt-tokens", COMMAND_BENCH, prompt_tokens, "N", 1, 1e6),
     .help = "length of the synthetic prompt (default 16)"},
    {LIST("compare", COMMAND_BENCH, compare, "A B"), .words = 2,
     .help = "runs nothing: prints two directories of results side by side"},
    {TEXT("csv", COMMAND_BENCH, csv, "DIR"),
     .help = "directory for the results, made if it is missing: per case a CSV, a plot (SVG and PNG) and the "
             "answer; summary.json"},

    // chat
    {.heading = "The conversation",
     TEXT("system", COMMAND_CHAT, system, "TEXT"),
     .help = "system text in front of the conversation"},
    {FLAG("think", COMMAND_CHAT, think),
     .help = "let the model think before it answers (/think switches it)"},
    {FLAG("no-history", COMMAND_CHAT, no_history),
     .help = "neither read nor write the history of your lines ($XDG_STATE_HOME/duckd/chat_history)"},

    // serve
    {.heading = "Who may ask",
     TEXT("listen", COMMAND_SERVE, listen, "ADDRESS:PORT"),
     .help = "where to listen (default 127.0.0.1:8080; port 0 takes a free one and says which)"},
    {TEXT("api-keys", COMMAND_SERVE, api_keys, "F"),
     .help = "file with an API key per line; without it every request is taken"},
    {LIST("cors", COMMAND_SERVE, cors, "ORIGIN"),
     .help = "web pages of this origin may call too (https://chat.example, * for all); may be repeated "
             "(default: only pages of this server)"},
    {TEXT("model-name", COMMAND_SERVE, model_name, "NAME"),
     .help = "what the API calls the model (default: the name of its directory)"},
    {.heading = "How much at once",
     WHOLE("lanes", COMMAND_SERVE, lanes, "N", 1, 256),
     .preset = 8,
     .help = "requests computed side by side (default 8)"},
    {WHOLE("queue", COMMAND_SERVE, queue, "N", 0, 10000), .preset = 64,
     .help = "requests that may wait behind them; more are answered with 429 (default 64)"},
    {WHOLE("kv-cache", COMMAND_SERVE | COMMAND_CHAT, kv_cache_mb, "MB", 0, 1e7), .preset = 1024,
     .help =
         "memory for the KV of earlier requests, reused by those that begin alike; 0: none (default 1024)"},
    {TEXT("kv-dir", COMMAND_SERVE, kv_dir, "DIR"),
     .help = "directory where that KV outlives the process, made if it is missing (default: it does not)"},
    {WHOLE("kv-dir-size", COMMAND_SERVE, kv_dir_mb, "MB", 1, 1e8), .preset = 4096,
     .help = "how large it may become; what was not used for longest goes first (default 4096)"},
    {WHOLE("connections", COMMAND_SERVE, connections, "N", 1, 100000), .preset = 512,
     .help = "open connections (default 512)"},
    {WHOLE("max-body", COMMAND_SERVE, max_body_mb, "MB", 1, 1024), .preset = 8,
     .help = "largest request body (default 8)"},
    {WHOLE("request-timeout", COMMAND_SERVE, request_timeout_s, "S", 1, 86400), .preset = 20,
     .help = "seconds within which a request's headers must be complete; its body gets ten times that "
             "(default 20)"},
    {WHOLE("idle-timeout", COMMAND_SERVE, idle_timeout_s, "S", 1, 86400), .preset = 75,
     .help = "seconds that a connection may wait for its next request (default 75)"},
    {WHOLE("drain-timeout", COMMAND_SERVE, drain_timeout_s, "S", 0, 86400), .preset = 10,
     .help = "seconds that running requests get to finish after SIGTERM (default 10)"},

    // how the answer is made
    {.heading = "How to answer",
     .letter = 'n',
     WHOLE("max-tokens", COMMAND_GENERATE | COMMAND_CHAT, n, "N", 1, 1e9),
     .help = "at most N tokens (default: until the model stops)"},
    {.heading = "How to answer",
     .letter = 'n',
     WHOLE("max-tokens", COMMAND_BENCH, n, "N", 1, 1e9),
     .help = "at most N tokens per answer, however many the suite allows"},
    {NUMBER("temperature", ANSWERS, temperature, "T", 0, 100),
     .help = "0 takes the most likely token, so the answer is always the same; 1 samples as the model was "
             "trained (default 0, whatever generation_config.json says)"},
    {NUMBER("top-p", ANSWERS, top_p, "P", 0, 1), .preset = 1,
     .help = "sample from the most likely tokens that make up P (default 1: off)"},
    {WHOLE("top-k", ANSWERS, top_k, "K", 0, 1e9),
     .help = "sample from the K most likely tokens (default 0: off)"},
    {NUMBER("min-p", ANSWERS, min_p, "P", 0, 1),
     .help = "sample from tokens at least P times as likely as the best (default 0: off)"},
    {ROW(SEED, "seed", ANSWERS, seed, "S"),
     .help =
         "of the random numbers; the same seed gives the same answer (default: a new one, said on stderr)"},
    {NUMBER("frequency-penalty", ANSWERS, frequency_penalty, "X", -2, 2),
     .help = "subtract X from a token's logit each time it was generated (default 0)"},
    {NUMBER("presence-penalty", ANSWERS, presence_penalty, "X", -2, 2),
     .help = "subtract X from a token's logit once it was generated (default 0)"},
    {NUMBER("repetition-penalty", ANSWERS, repetition_penalty, "X", 0.01, 100), .preset = 1,
     .help = "divide a generated token's logit by X, multiply it where negative (default 1: off)"},
    {ROW(BIAS, "logit-bias", ANSWERS, bias, "ID=BIAS"), .low = -100, .high = 100,
     .help = "add BIAS to the logit of token ID; may be repeated"},
    {LIST("stop", COMMAND_GENERATE | COMMAND_CHAT, stop, "TEXT"),
     .help = "end the answer before TEXT; may be repeated"},
    {FLAG("ignore-eos", ANSWERS, ignore_eos),
     .help = "the model's end-of-sequence token is an ordinary token"},

    // doctor
    {.heading = "What to examine",
     TEXT("flock", COMMAND_DOCTOR, flock, "FILE"),
     .help = "the flock's file: what its ports need is checked, its lcores and devices by name"},
    {TEXT("root", COMMAND_DOCTOR, root, "DIR"),
     .help = "read proc, sys and lib/firmware below DIR instead of /: a copy of another machine's"},
    {TEXT("flock", COMMAND_FLOCK, flock, "FILE"),
     .help = "the flock's file, which names the ducks and how they are reached"},
    {CHOICE("expert-format", COMMAND_FLOCK, expert_format, "fp9|e4m3"),
     .help = "doctor: what ducks are to keep experts as; they compute the known answer in it (default fp9)"},
    {FLAG("json", COMMAND_DOCTOR | COMMAND_FLOCK, json), .help = "JSON instead of a table"},
    {WHOLE("wait", COMMAND_FLOCK, wait_s, "SECONDS", 1, 3600), .preset = 180,
     .help = "boot: how long ducks may take to come up (default 180)"},

    // generate's output
    {.heading = "Output",
     FLAG("json", COMMAND_GENERATE, json),
     .help = "print one JSON object at the end instead of the text: text, tokens, finish_reason, timings"},
    {TEXT("csv", COMMAND_GENERATE, csv, "F"),
     .help = "write a line per token (- is stdout, after the answer): time since the request was read (t_ms) "
             "and since the token before (tpot_ms), in ms"},

    // where the work is done
    {.heading = "Model and machine",
     TEXT("model", ENGINE | COMMAND_TOKENIZE, model, "DIR"),
     .help = "directory of the checkpoint, as on Hugging Face (default models/duckling)"},
    {TEXT("flock", ENGINE, flock, "SPEC"), .also = COMMAND_TOKENIZE,
     .help = "who computes the experts: local (ducks as threads of this process), local:N (N of them) or a "
             "JSON file (default local)"},
    {CHOICE("backend", ENGINE, backend, "auto|cpu|cuda"), .also = COMMAND_TOKENIZE,
     .help = "who computes attention, router and head (default auto)"},
    {CHOICE("mtp", ENGINE, mtp, "0|1"), .also = COMMAND_TOKENIZE, .preset = -1,
     .help = "draft a second token per step; the answer stays the same (default 1 where the model has an MTP "
             "layer)"},
    {CHOICE("drafts", ENGINE, drafts, "adapt|always"), .also = COMMAND_TOKENIZE,
     .help = "with --mtp 1: adapt drops drafts while they cost more than they bring, always never does "
             "(default adapt)"},
    {CHOICE("wire-activation", ENGINE, wire_activation, "f32|bf16|fp8"), .also = COMMAND_TOKENIZE,
     .preset = 1, .help = "type of the activations sent to ducks (default bf16)"},
    {CHOICE("wire-result", ENGINE, wire_result, "f32|bf16"), .also = COMMAND_TOKENIZE,
     .help = "type of the sums that ducks send back (default f32)"},
    {CHOICE("expert-format", ENGINE, expert_format, "fp9|e4m3"), .also = COMMAND_TOKENIZE,
     .help = "what ducks keep experts as: e4m3, the checkpoint's own bytes where it is fp8, takes 11 % less "
             "memory and bandwidth than fp9; results are the same (default fp9)"},
    {CHOICE("kv-dtype", ENGINE, kv_dtype, "f32|bf16|fp8"), .also = COMMAND_TOKENIZE, .preset = -1,
     .help = "type of the KV cache (default f32 on the CPU, bf16 on the GPU)"},
    {CHOICE("gpu-shared", ENGINE, gpu_shared, "auto|on|off"), .also = COMMAND_TOKENIZE,
     .help = "the CUDA backend computes the shared experts while ducks compute the routed ones; auto: where "
             "its memory then still holds a text of full length (default auto)"},
    {WHOLE("threads", ENGINE, threads, "N", 1, 1024), .also = COMMAND_TOKENIZE,
     .help = "threads for the arithmetic; results do not depend on it (default: one per CPU)"},

    {.heading = "Trace",
     TEXT("trace", COMMAND_GENERATE | COMMAND_BENCH, trace, "FILE"),
     .help = "what every lane, the backend, the flock and each duck did when, as a Chrome/Perfetto trace"},

    {.heading = "General",
     TEXT("config", ALL, config, "FILE"),
     .help = "JSON object with any of these options, names without the dashes; the command line wins"},
    {.letter = 'v', FLAG("verbose", ALL, verbose), .help = "more on stderr"},
    {.letter = 'q', FLAG("quiet", ALL, quiet), .help = "only errors on stderr"},
    {.letter = 'h', FLAG("help", ALL, help), .help = "this text"},
};
const size_t options__rows = sizeof options__table / sizeof options__table[0];

const struct command_row options__commands[] = {
    {COMMAND_SERVE, "serve", "[--listen ADDRESS:PORT]", "OpenAI-compatible HTTP server and chat page",
     "Serves the model over HTTP: an OpenAI-compatible API under /v1, a chat page at /, /health and "
     "/metrics. "
     "A request that says nothing about sampling gets what the model's generation_config.json suggests. "
     "SIGTERM (or Ctrl-C) lets running requests finish; a second one does not."},
    {COMMAND_GENERATE, "generate", "-p TEXT | --prompt-file F | --tokens F", "answer one prompt on stdout",
     "Answers one prompt on stdout, as the tokens come. Ctrl-C ends the answer early and keeps what is there "
     "(status 130)."},
    {COMMAND_CHAT, "chat", "", "chat in the terminal",
     "Chats in the terminal. Ctrl-C stops the answer, Ctrl-D leaves, /help lists what else there is. What is "
     "pasted, of several lines too, becomes a part of one message, which Enter sends. When stdin is not a "
     "terminal, each of its lines is a message (or a command) and stdout gets the answers alone."},
    {COMMAND_BENCH, "bench", "[--suite F] --csv DIR | --compare A B",
     "run a suite of prompts: times, plots, table",
     "Runs a suite of prompts one after the other and prints a table: time to first token (TTFT), prefill "
     "rate, time per "
     "output token (TPOT: mean and percentiles), decode rate, MTP acceptance, overlap. A short answer that "
     "is not counted "
     "warms up first. Plots need gnuplot."},
    {COMMAND_PLAN, "plan",
     "--hardware F [--model M] [--scheme reference|duckd] [--set KEY=VALUE ...] [--bench DIR] [--json]",
     "what a model will do on some hardware",
     "Projects what a model will do on some hardware: whether it fits, cold start, time to first token, "
     "prefill and decode rates, and what limits them. Loads nothing and measures nothing: every figure "
     "is projected."},
    {COMMAND_LOGITS, "logits", "--tokens F --out F [--last K] [--dump DIR]", "logits of given tokens",
     "Writes the logits that the model gives at each position of a token sequence."},
    {COMMAND_EVAL, "eval", "--tokens F", "perplexity of given tokens",
     "Prints one line of JSON: tokens (how many were predicted), nll (their mean negative log-likelihood in "
     "nats) and "
     "perplexity."},
    {COMMAND_DOCTOR, "doctor", "[--flock FILE] [--json]", "is this machine fit to drive a flock?",
     "Looks at what a flock on a network needs of its host: CPU, huge pages, IOMMU and vfio, locked memory, "
     "isolated "
     "CPUs, their frequency, and with --flock the devices of its ports. One line each: ok, advice (works "
     "without, "
     "better with) or MISSING, and what to do. Status 1 if something that the flock needs is missing; "
     "without "
     "--flock only the CPU is. docs/operations.md says more."},
    {COMMAND_FLOCK, "flock", "status|doctor|wake|boot|reboot|off [DUCK ...] --flock FILE [--json]",
     "look after the ducks of a flock",
     "Looks after the ducks of a network flock, all of them or those that are named, without a session: a "
     "duck that works "
     "for a host is not disturbed. "
     "status: what each is, who holds it, what it has counted. "
     "doctor: the same as a verdict per duck: does it answer, does it compute right, is its clock below what "
     "its CPU has with all cores busy, is its link, memory, bandwidth, clock or power limit below the "
     "others', "
     "is it throttled, does it lose frames; status 1 if one is unwell. "
     "wake: magic packets to the MAC addresses of the flock's file. "
     "boot: wakes them and tells who comes up, and who does not. "
     "reboot, off: restarts ducks, or switches them off, but not those that a host holds; a duck that is a "
     "Linux process ends."},
    {COMMAND_TOKENIZE, "tokenize", "-p TEXT | --file F [--allow-special] | --decode F",
     "text to token ids and back", "Prints a JSON array of token ids, or the text of one. Adds no BOS."},
};
const size_t options__command_count = sizeof options__commands / sizeof options__commands[0];
