/* bench_net.c: one layer on a flock on a network: how fast weights get there, what a step costs beside what
 * its ducks compute, and how many bytes cross the wire beside the fewest possible.
 *
 * The weights are random and the same for all experts; which experts a step reads is drawn anew each time, so
 * that a duck with enough of them reads memory. Times are medians. --compare has sessions in turn with ducks
 * that receive and send while they compute and with ducks that do not. Between the lines "steps begin" and
 * "steps end" nothing is printed: tests count system calls there. SIGINT ends the steps early: figures are of
 * those that were made. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "host/flock/net/workers.h"
#include "host/flock/spec.h"
#include "host/flock/transport.h"
#include "host/util/clock.h"
#include "tools/bench_arguments.h"

enum { MOST_LANES = 4, CLOSE_MS = 1000, OPEN_MS = 30000, STEP_MS = 300000, WARM_UP = 20, MOST_ROUNDS = 100 };

struct options {
    const char *flock;
    uint32_t hidden, columns, experts, top_k, tokens, lanes, steps, loads, rounds;
    enum wire_dtype activation, result;
};

struct lane {
    struct mlp_step step;
    float *x, *y, *weights;
    int32_t *ids;
    uint64_t begun_ns;
};

struct bench {
    struct options o;
    struct flock_spec spec;
    struct net_flock f;
    const struct net_workers *workers;
    void *running;
    struct duck_bank_shape bank;
    struct plan plan;
    uint8_t *tensor;
    float *scales;
    struct lane lane[MOST_LANES];
    uint64_t *step_ns; // (steps)
    uint32_t made;     // of them, by the last run_steps()
    uint64_t seed;
};

static volatile sig_atomic_t enough;

static void on_interrupt(int number)
{
    (void)number;
    enough = 1;
}

static uint64_t next(struct bench *b) // xorshift64
{
    b->seed ^= b->seed << 13;
    b->seed ^= b->seed >> 7;
    b->seed ^= b->seed << 17;
    return b->seed;
}

static void *must(void *p)
{
    if (p) return p;
    fprintf(stderr, "bench-net: no memory\n");
    exit(1);
}

static int failed(struct bench *b, const struct error *err)
{
    struct error why = *err;
    if (b->f.duck) net_failure(&b->f, &why);
    fprintf(stderr, "bench-net: %s\n", why.text);
    return 1;
}

/* ---- the session ---- */

static int reach(struct bench *b, enum net_duck_state state, uint64_t ms, struct error *err)
{
    const struct net_duck *missing;
    uint64_t until = clock_ns() + ms * 1000000;
    while (!net_all_reached(&b->f, state, &missing)) {
        int rc = net_failure(&b->f, err);
        if (rc) return rc;
        if (clock_ns() > until)
            return error_set(err, -1, "%s has not answered within %" PRIu64 " ms", net_duck_name(missing).s,
                             ms);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return 0;
}

/* Every duck holds `columns` of every expert. */
static void make_plan(struct bench *b)
{
    uint32_t ducks = b->f.ducks, slices = b->o.columns / 8;
    b->bank = (struct duck_bank_shape){.routed = b->o.experts, .width = ducks * b->o.columns};
    b->plan = (struct plan){.hidden = b->o.hidden, .banks = 1, .ducks = ducks, .runs = ducks};
    b->plan.bank = &b->bank;
    b->plan.run = must(calloc(ducks, sizeof *b->plan.run));
    for (uint32_t i = 0; i < ducks; i++) b->plan.run[i] = (struct plan_run){i, 0, i * slices, slices};
}

static void make_tensor(struct bench *b)
{
    size_t bytes = (size_t)b->bank.width * b->o.hidden;
    size_t blocks = (b->bank.width + 127) / 128 * ((size_t)b->o.hidden + 127) / 128 + 256;
    b->tensor = must(malloc(bytes));
    b->scales = must(malloc(blocks * sizeof *b->scales));
    for (size_t i = 0; i < bytes; i++) { // no NaN, no large numbers
        uint64_t r = next(b);
        b->tensor[i] = (uint8_t)((r >> 20 & 0x80) | (r >> 32) % 0x60);
    }
    for (size_t i = 0; i < blocks; i++) b->scales[i] = 1.0f / 64;
}

static int start(struct bench *b, struct error *err)
{
    int rc = flock_spec_read(&b->spec, b->o.flock, err);
    if (rc) return rc;
    if (!b->spec.net) return error_set(err, -1, "the flock '%s' is not on a network", b->o.flock);
    b->workers = b->spec.transport == &transport_dpdk ? &net_workers_dpdk : &net_workers_udp;
    rc = net_flock_init(&b->f, b->spec.net, err);
    if (!rc) rc = b->workers->start(&b->running, &b->f, err);
    return rc ? rc : reach(b, NET_FOUND, b->spec.net->find_ms, err);
}

static int open_session(struct bench *b, bool in_turn, struct error *err)
{
    uint8_t nonce[WIRE_NONCE];
    if (getrandom(nonce, sizeof nonce, 0) != sizeof nonce) return error_set(err, -1, "no random numbers");
    memcpy(&b->seed, nonce, sizeof b->seed);
    b->seed |= 1;
    struct net_session s = {.plan = &b->plan,
                            .lanes = b->o.lanes,
                            .max_tokens = b->o.tokens,
                            .max_top_k = b->o.top_k,
                            .element_bytes = 1,
                            .activation = b->o.activation,
                            .result = b->o.result,
                            .in_turn = in_turn};
    int rc = net_flock_prepare(&b->f, &s, nonce, err);
    if (rc) return rc;
    net_set_goal(&b->f, NET_OPEN);
    rc = reach(b, NET_READY, OPEN_MS, err);
    if (!rc) net_set_goal(&b->f, NET_RUN);
    return rc;
}

/* Another session with the same ducks, which keep their weights. */
static int reopen_session(struct bench *b, bool in_turn, struct error *err)
{
    net_close_session(&b->f, CLOSE_MS);
    int rc = net_flock_take_back(&b->f, 0, err); // forgets the session
    if (rc) return rc;
    net_set_goal(&b->f, NET_FIND);
    rc = reach(b, NET_FOUND, b->spec.net->find_ms, err);
    return rc ? rc : open_session(b, in_turn, err);
}

static void end(struct bench *b)
{
    if (b->running) {
        net_close_session(&b->f, CLOSE_MS);
        b->workers->stop(b->running);
    }
    for (int i = 0; i < MOST_LANES; i++) {
        free(b->lane[i].x);
        free(b->lane[i].y);
        free(b->lane[i].weights);
        free(b->lane[i].ids);
    }
    if (b->f.config) net_flock_free(&b->f);
    if (b->spec.duck) flock_spec_free(&b->spec);
    free(b->plan.run);
    free(b->tensor);
    free(b->scales);
    free(b->step_ns);
}

/* ---- weights ---- */

struct traffic {
    uint64_t frames_out, bytes_out, frames_in, bytes_in;
};

static struct traffic traffic(const struct bench *b)
{
    struct traffic t = {0};
    for (uint32_t i = 0; i < b->f.ports; i++) {
        const struct net_port *p = &b->f.port[i];
        t.frames_out += atomic_load(&p->frames_out);
        t.bytes_out += atomic_load(&p->bytes_out);
        t.frames_in += atomic_load(&p->frames_in);
        t.bytes_in += atomic_load(&p->bytes_in);
    }
    return t;
}

static uint64_t repeated(const struct bench *b)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < b->f.ducks; i++) {
        const struct net_counters *c = &b->f.duck[i].count;
        n += c->chunks_repeated + c->resend_asked + c->resend_served + c->steps_repeated;
    }
    return n;
}

static int send_weights(struct bench *b, struct error *err)
{
    for (size_t i = 0; i < (size_t)b->bank.width * b->o.hidden; i++)
        b->tensor[i] ^= 0x80; // other ones than last time: nothing is held already
    struct traffic before = traffic(b);
    uint64_t begun = clock_ns(), repeated_before = repeated(b), where;
    for (uint32_t e = 0; e < b->bank.routed; e++) {
        for (int which = DUCK_GATE; which <= DUCK_DOWN; which++) {
            struct duck_tensor t = {.data = b->tensor,
                                    .scales = (const uint8_t *)b->scales,
                                    .element_bytes = 1,
                                    .hidden = b->o.hidden,
                                    .width = b->bank.width,
                                    .which = (enum duck_matrix)which};
            struct net_unit_source s = {.expert = e, .tensor = &t};
            int rc = net_load(&b->f, &s, &where, err);
            if (rc) return rc;
        }
    }
    int rc = net_load_finish(&b->f, err);
    if (rc) return rc;
    double seconds = (double)(clock_ns() - begun) * 1e-9;
    struct traffic now = traffic(b);
    uint64_t again = repeated(b) - repeated_before;
    double bytes = 3.0 * b->bank.routed * b->bank.width * b->o.hidden;
    printf(
        "weights: %.1f MB in %.3f s: %.1f MB/s of weights, %.1f MB/s on the wire, %" PRIu64
        " chunks sent again\n",
        bytes * 1e-6, seconds, bytes * 1e-6 / seconds,
        ((double)(now.bytes_out - before.bytes_out) + 42.0 * (double)(now.frames_out - before.frames_out)) *
            1e-6 / seconds,
        again);
    return 0;
}

/* ---- steps ---- */

static void draw_step(struct bench *b, struct lane *l)
{
    uint32_t k = b->o.top_k;
    for (uint32_t t = 0; t < b->o.tokens; t++) {
        int32_t *id = l->ids + (size_t)t * k;
        uint32_t from = 0; // one expert out of each of top_k equal parts: ascending
        for (uint32_t i = 0; i < k; i++) {
            uint32_t until = (i + 1) * b->o.experts / k;
            id[i] = (int32_t)(from + next(b) % (until - from));
            from = until;
        }
    }
}

static void make_lanes(struct bench *b)
{
    size_t n = (size_t)b->o.tokens * b->o.hidden, pairs = (size_t)b->o.tokens * b->o.top_k;
    for (uint32_t i = 0; i < b->o.lanes; i++) {
        struct lane *l = &b->lane[i];
        l->x = must(malloc(n * sizeof *l->x));
        l->y = must(calloc(n, sizeof *l->y));
        l->ids = must(malloc(pairs * sizeof *l->ids));
        l->weights = must(malloc(pairs * sizeof *l->weights));
        for (size_t k = 0; k < n; k++) l->x[k] = (float)(next(b) >> 40) / (1 << 23) - 1;
        for (size_t k = 0; k < pairs; k++) l->weights[k] = 0.25f;
        l->step = (struct mlp_step){.tokens = b->o.tokens,
                                    .top_k = b->o.top_k,
                                    .x = l->x,
                                    .ids = l->ids,
                                    .weights = l->weights,
                                    .y = l->y};
    }
}

/* `steps` steps, fewer after an interrupt; always `lanes` of them on their way. */
static int run_steps(struct bench *b, uint32_t lanes, uint32_t steps, struct error *err)
{
    uint32_t begun = 0, done = 0;
    for (;;) {
        if (enough) steps = begun;
        if (done == steps) break;
        struct lane *l = &b->lane[done % lanes];
        while (begun < steps && begun < done + lanes) {
            struct lane *fresh = &b->lane[begun % lanes];
            draw_step(b, fresh);
            fresh->begun_ns = clock_ns();
            int rc = net_submit(&b->f, begun % lanes, &fresh->step, fresh->begun_ns, err);
            if (rc) return rc;
            begun++;
        }
        uint64_t now = clock_ns();
        int rc = net_poll(&b->f, done % lanes, now, err);
        if (rc < 0) return rc;
        if (rc == 0) {
            if (now - l->begun_ns > STEP_MS * 1000000ull)
                return error_set(err, -1, "step %u is not finished after %d s", done, STEP_MS / 1000);
            net_wait(&b->f);
            continue;
        }
        b->step_ns[done++] = clock_ns() - l->begun_ns;
    }
    for (int i = 0; i < 1000 && !net_settled(&b->f); i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    b->made = done;
    return 0;
}

static int ascending_ns(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static int ascending(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* What a duck says that it has computed, microseconds; the median and the least of the last steps of all
 * ducks. */
static double duck_us(const struct bench *b, double *least)
{
    uint64_t us[NET_RECENT * 64];
    size_t n = 0;
    for (uint32_t i = 0; i < b->f.ducks && i < 64; i++) {
        uint64_t steps = atomic_load(&b->f.duck[i].count.steps);
        for (uint32_t k = 0; k < NET_RECENT && k < steps; k++)
            us[n++] = atomic_load(&b->f.duck[i].recent_us[k]);
    }
    qsort(us, n, sizeof *us, ascending_ns);
    size_t middle = n / 2;
    *least = n ? (double)us[0] : 0;
    return n ? (double)us[middle] : 0;
}

/* What a step needs on the wires at least: its bytes once for each port, and the results' values. */
static double fewest_bytes(const struct bench *b)
{
    uint64_t out =
        wire_step_layout(b->o.hidden, b->o.tokens, b->o.top_k, b->o.activation, b->f.payload).bytes;
    uint64_t in = 0;
    for (uint32_t i = 0; i < b->f.bank[0].nodes; i++)
        in += wire_packed_bytes(b->o.result, b->o.tokens, b->o.hidden);
    return (double)(out * b->f.ports + in);
}

struct figures {
    double each, p50, p90, duck; // us: a step every, from submission to the sum, a duck's computing
    double overhead;             // of a step: beyond what the duck computes
    double least; // the fastest step, beyond the duck's fastest: whatever else the machine does
    struct traffic before, after;
};

static int measure(struct bench *b, uint32_t lanes, struct figures *f, struct error *err)
{
    int rc = run_steps(b, lanes, WARM_UP, err);
    if (rc) return rc;
    f->before = traffic(b);
    printf("steps begin\n");
    fflush(stdout);
    uint64_t begun = clock_ns();
    rc = run_steps(b, lanes, b->o.steps, err);
    if (rc) return rc;
    if (b->made == 0) return error_set(err, -EINTR, "interrupted before the first step");
    f->each = (double)(clock_ns() - begun) * 1e-3 / b->made;
    printf("steps end\n");
    fflush(stdout);
    f->after = traffic(b);
    qsort(b->step_ns, b->made, sizeof *b->step_ns, ascending_ns);
    size_t middle = b->made / 2, most = (size_t)b->made * 9 / 10;
    f->p50 = (double)b->step_ns[middle] * 1e-3;
    f->p90 = (double)b->step_ns[most] * 1e-3;
    double duck_least;
    f->duck = duck_us(b, &duck_least);
    f->least = (double)b->step_ns[0] * 1e-3 - duck_least;
    f->overhead = (lanes == 1 ? f->p50 : f->each) - f->duck;
    return 0;
}

static int measure_and_say(struct bench *b, uint32_t lanes, struct error *err)
{
    struct net_times times = b->f.times;
    struct figures f;
    int rc = measure(b, lanes, &f, err);
    if (rc) return rc;
    double n = b->made;
    printf(
        "%u lane%s: a step every %.1f us; from submission p50 %.1f, p90 %.1f us; duck p50 %.1f us; overhead "
        "%.1f us (%.1f a step)\n",
        lanes, lanes > 1 ? "s" : "", f.each, f.p50, f.p90, f.duck, f.p50 - f.duck, f.each - f.duck);
    const struct net_times *t = &b->f.times;
    printf("  prepare %.1f, send %.1f, judge_wait %.1f, fetch %.1f, reduce %.1f us\n",
           (double)(t->prepare_ns - times.prepare_ns) * 1e-3 / n,
           (double)(t->send_ns - times.send_ns) * 1e-3 / n,
           (double)(t->judge_wait_ns - times.judge_wait_ns) * 1e-3 / n,
           (double)(t->fetch_ns - times.fetch_ns) * 1e-3 / n,
           (double)(t->reduce_ns - times.reduce_ns) * 1e-3 / n);
    double out = (double)(f.after.bytes_out - f.before.bytes_out) / n,
           in = (double)(f.after.bytes_in - f.before.bytes_in) / n;
    double frames =
        (double)(f.after.frames_out - f.before.frames_out + f.after.frames_in - f.before.frames_in) / n;
    double wire = out + in + 42 * frames, fewest = fewest_bytes(b);
    printf("  %.1f frames, %.0f bytes out and %.0f in with all headers %.0f, fewest %.0f: %.3f x; %" PRIu64
           " sent or asked again\n",
           frames, out, in, wire, fewest, wire / fewest, repeated(b));
    return 0;
}

static double median(double *of, uint32_t n)
{
    qsort(of, n, sizeof *of, ascending);
    return of[n / 2];
}

struct rounds {
    double overhead[MOST_ROUNDS], duck[MOST_ROUNDS], whole[MOST_ROUNDS], least[MOST_ROUNDS];
};

/* Sessions in turn: ducks that receive and send while they compute, ducks that do one after the other. */
static int compare_overlap(struct bench *b, struct error *err)
{
    static struct rounds rounds[2][MOST_LANES];
    uint32_t n = b->o.rounds;
    for (uint32_t r = 0; r < n; r++)
        for (int in_turn = 0; in_turn < 2; in_turn++) {
            int rc = reopen_session(b, in_turn, err);
            for (uint32_t l = 0; !rc && l < b->o.lanes; l++) {
                struct figures f = {0};
                rc = measure(b, l + 1, &f, err);
                rounds[in_turn][l].overhead[r] = f.overhead;
                rounds[in_turn][l].duck[r] = f.duck;
                rounds[in_turn][l].whole[r] = f.overhead + f.duck;
                rounds[in_turn][l].least[r] = f.least;
            }
            if (rc) return rc;
        }
    for (uint32_t l = 0; l < b->o.lanes; l++) {
        printf("%u lane%s, medians of %u rounds; of the fastest step:\n", l + 1, l ? "s" : "", n);
        for (int in_turn = 0; in_turn < 2; in_turn++) {
            struct rounds *of = &rounds[in_turn][l];
            median(of->least, n); // sorted from now on
            printf("  %s overlap: overhead %.1f (%.1f) us, a step %.1f, the duck %.1f\n",
                   in_turn ? "without" : "with", median(of->overhead, n), of->least[0], median(of->whole, n),
                   median(of->duck, n));
        }
    }
    return 0;
}

/* ---- the command line ---- */

static void usage(void)
{
    fputs("usage: bench-net --flock FILE [options]\n"
          "Times one layer of random weights on the ducks of a network flock.\n"
          "  --hidden N       width of the activation, a multiple of 8 (7168)\n"
          "  --columns N      intermediate columns of all ducks together, a multiple of 8 (64)\n"
          "  --experts N      experts in the layer (32)\n"
          "  --top-k N        experts of a token (8)\n"
          "  --tokens N       tokens in a step (1)\n"
          "  --lanes N        steps in flight, measured from 1 up to N (2)\n"
          "  --steps N        measured steps of each (500)\n"
          "  --loads N        how often the weights are sent (1)\n"
          "  --compare N      N rounds with and without ducks that receive while they compute (none)\n"
          "  --activation T   f32, bf16 or fp8 on the wire (bf16)\n"
          "  --result T       f32 or bf16 on the wire (f32)\n",
          stdout);
}

/* What is measured in numbers, in the order of `longs`. */
enum { NUMBERS = 9 };

static bool parse(struct options *o, int argc, char **argv)
{
    static const struct option longs[] = {
        {"hidden", 1, NULL, 'n'}, {"columns", 1, NULL, 'n'}, {"experts", 1, NULL, 'n'},
        {"top-k", 1, NULL, 'n'},  {"tokens", 1, NULL, 'n'},  {"lanes", 1, NULL, 'n'},
        {"steps", 1, NULL, 'n'},  {"loads", 1, NULL, 'n'},   {"compare", 1, NULL, 'n'},
        {"flock", 1, NULL, 'f'},  {"result", 1, NULL, 'r'},  {"activation", 1, NULL, 'a'},
        {NULL, 0, NULL, 0}};
    static const struct bench_range range[NUMBERS] = {
        {8, 1u << 17, 8},   {8, 1u << 17, 8}, {1, 1u << 16, 1}, {1, 1u << 16, 1},   {1, 4096, 1},
        {1, MOST_LANES, 1}, {0, 1u << 30, 1}, {1, 1u << 20, 1}, {1, MOST_ROUNDS, 1}};
    static const char *const dtype[] = {[WIRE_F32] = "f32", [WIRE_BF16] = "bf16", [WIRE_FP8] = "fp8"};
    *o = (struct options){.hidden = 7168,
                          .columns = 64,
                          .experts = 32,
                          .top_k = 8,
                          .tokens = 1,
                          .lanes = 2,
                          .steps = 500,
                          .loads = 1,
                          .activation = WIRE_BF16,
                          .result = WIRE_F32};
    uint32_t *const number[NUMBERS] = {&o->hidden, &o->columns, &o->experts, &o->top_k, &o->tokens,
                                       &o->lanes,  &o->steps,   &o->loads,   &o->rounds};
    int activation = (int)o->activation, result = (int)o->result;
    bool good = true;
    for (int c, at; good && (c = getopt_long(argc, argv, "", longs, &at)) != -1;) {
        if (c == 'n')
            good = bench_number(longs[at].name, optarg, range[at], number[at]);
        else if (c == 'f')
            o->flock = optarg;
        else if (c == 'a')
            good = bench_choice("activation", optarg, dtype, WIRE_FP8 + 1, &activation);
        else if (c == 'r')
            good = bench_choice("result", optarg, dtype, WIRE_BF16 + 1, &result);
        else
            return false; // getopt has said it
    }
    if (!good) return false;
    o->activation = (enum wire_dtype)activation;
    o->result = (enum wire_dtype)result;
    if (optind < argc) return bench_wrong("there is no use for '%s'", argv[optind]);
    if (!o->flock) return bench_wrong("--flock FILE is missing");
    if (o->top_k > o->experts)
        return bench_wrong("--top-k is %u, --experts %u: a token cannot choose more", o->top_k, o->experts);
    if (o->rounds && o->steps < NET_RECENT) // medians are of these steps alone
        return bench_wrong("--compare needs --steps %u or more, not %u", (unsigned)NET_RECENT, o->steps);
    return true;
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct error err = {0};
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        usage();
        return 0;
    }
    if (!parse(&b.o, argc, argv)) return 2;
    sigaction(SIGINT, &(struct sigaction){.sa_handler = on_interrupt}, NULL);
    b.step_ns = must(calloc(b.o.steps + WARM_UP, sizeof *b.step_ns));
    int rc = start(&b, &err);
    if (!rc) {
        b.seed = 1;
        make_plan(&b);
        make_tensor(&b);
        rc = open_session(&b, false, &err);
    }
    for (uint32_t i = 0; !rc && i < b.o.loads; i++) rc = send_weights(&b, &err);
    if (!rc) make_lanes(&b);
    for (uint32_t lanes = 1; !rc && b.o.steps && lanes <= b.o.lanes && !enough; lanes++)
        rc = measure_and_say(&b, lanes, &err);
    if (!rc && b.o.rounds) rc = compare_overlap(&b, &err);
    if (rc) failed(&b, &err);
    end(&b);
    return rc ? 1 : 0;
}
