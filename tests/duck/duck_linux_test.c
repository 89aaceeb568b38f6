/* duck_linux_test.c: the program duck-linux itself, over UDP on loopback: loads the experts of a checkpoint,
 * steps give the bits of a local duck core; ends cleanly; refuses wrong arguments. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "duck/kat.h"
#include "duck/program.h"
#include "host/flock/plan.h"
#include "host/model/model.h"
#include "host/util/clock.h"
#include "tests/duck/mini_host.h"

/* ---- a process and a socket ---- */

struct ducky {
    pid_t pid;
    int fd; // connected to it
    uint16_t port;
};

static char key_file[64];

static uint16_t free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &size), 0);
    close(fd);
    return ntohs(a.sin_port);
}

static struct ducky start(const char *cores, const char *mtu)
{
    struct ducky d = {.port = free_port()};
    char port[8];
    snprintf(port, sizeof port, "%u", d.port);
    d.pid = fork();
    assert_true(d.pid >= 0);
    if (d.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); // a failed test leaves none behind
        execl(BINARY_DIR "/duck-linux", "duck-linux", "--udp", "127.0.0.1", "--port", port, "--key", key_file,
              "--cores", cores, "--mtu", mtu, "--memory", "64M", "--name", "test", (char *)NULL);
        _exit(127);
    }
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(d.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    d.fd = socket(AF_INET, SOCK_DGRAM, 0);
    assert_int_equal(connect(d.fd, (struct sockaddr *)&a, sizeof a), 0);
    return d;
}

/* SIGTERM ends it, with status 0. */
static void stop(struct ducky *d)
{
    int status = -1;
    assert_int_equal(kill(d->pid, SIGTERM), 0);
    for (int i = 0; i < 6000 && waitpid(d->pid, &status, WNOHANG) == 0; i++) usleep(10000);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(d->fd);
}

static void udp_send(void *self, const uint8_t *datagram, uint32_t bytes)
{
    struct ducky *d = self;
    while (send(d->fd, datagram, bytes, 0) < 0 && errno != ECONNREFUSED) {
    } // not there yet: as if lost
}

static uint32_t udp_recv(void *self, uint8_t *datagram, uint64_t ns)
{
    struct ducky *d = self;
    struct pollfd p = {.fd = d->fd, .events = POLLIN};
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    if (ppoll(&p, 1, &t, NULL) <= 0) return 0;
    ssize_t n = recv(d->fd, datagram, WIRE_DATAGRAM_MAX, 0);
    if (n < 0) usleep(1000); // refused: not there yet
    return n > 0 ? (uint32_t)n : 0;
}

static uint64_t udp_now(void *self)
{
    (void)self;
    return clock_ns();
}

static struct mini_host host_of(struct ducky *d, const struct layers *l)
{
    struct mini_wire wire = {.self = d, .send = udp_send, .recv = udp_recv, .now = udp_now};
    struct mini_host h =
        mini_host_make(wire, (struct siphash_key){0x0706050403020100u, 0x0f0e0d0c0b0a0908u}, 77);
    h.attempts = 6000; // of real time, on a machine that may be slow and busy
    if (l) h.terms.plan_hash = wire_object_hash(l->plan, l->plan_bytes);
    return h;
}

/* ---- the experts of a checkpoint ---- */

static void expert_tensors(const struct model *m, const struct plan *p, struct duck_tensor *out)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    struct error err;
    for (uint32_t b = 0; b < p->banks; b++) {
        const struct duck_bank_shape *s = &p->bank[b];
        uint32_t count = s->routed + (s->always ? 1 : 0);
        for (uint32_t e = 0; e < count; e++)
            for (int which = 0; which < 3; which++, out++) {
                struct weight w;
                uint32_t width = e < s->routed ? s->width : s->always * s->width;
                uint32_t rows = which == DUCK_DOWN ? p->hidden : width,
                         cols = which == DUCK_DOWN ? width : p->hidden;
                char name[128];
                if (s->routed == 0)
                    snprintf(name, sizeof name, "model.layers.%u.mlp.%s.weight", b, names[which]);
                else if (e < s->routed)
                    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.%s.weight", b, e,
                             names[which]);
                else
                    snprintf(name, sizeof name, "model.layers.%u.mlp.shared_experts.%s.weight", b,
                             names[which]);
                assert_int_equal(checkpoint_matrix(m->checkpoint, &w, rows, cols, &err, "%s", name), 0);
                *out = (struct duck_tensor){.data = w.data,
                                            .scales = w.scales,
                                            .element_bytes = w.dtype == DTYPE_F8_E4M3 ? 1
                                                             : w.dtype == DTYPE_BF16  ? 2
                                                                                      : 4,
                                            .hidden = p->hidden,
                                            .width = width,
                                            .which = (enum duck_matrix)which};
            }
    }
}

/* Duck `duck` of `ducks` of the golden checkpoint. */
static struct layers *golden_layers(const struct model *m, const struct plan *p, uint32_t duck,
                                    struct duck_run *run)
{
    struct duck_shape shape = {.hidden = p->hidden, .banks = p->banks, .bank = p->bank, .run = run};
    for (uint32_t i = 0; i < p->runs; i++)
        if (p->run[i].duck == duck)
            run[shape.runs++] = (struct duck_run){p->run[i].bank, p->run[i].first, p->run[i].count};
    uint32_t tensors = layers_tensors(&shape);
    struct duck_tensor *tensor = calloc(tensors, sizeof *tensor);
    expert_tensors(m, p, tensor);
    struct layers *l = layers_from(&shape, tensor, tensors);
    free(tensor);
    return l;
}

static void check_steps(struct mini_host *h, const struct layers *l)
{
    uint32_t number = 1;
    for (uint32_t bank = 0; bank < l->shape.banks; bank++)
        for (uint32_t tokens = 1; tokens <= 64; tokens *= 4, number++) {
            size_t bytes, values;
            uint32_t routed = l->shape.bank[bank].routed, top_k = routed < 4 ? routed : 4;
            uint8_t *step =
                layers_step(l, bank, tokens, top_k, WIRE_BF16, WIRE_F32, h->terms.payload, number, &bytes);
            float *expected = layers_expect(l, step, h->terms.payload, &values);
            float *out = calloc(values + 1, sizeof *out);
            struct wire_done done = {0};
            mini_send_step(h, number, step, bytes);
            assert_true(
                mini_collect(h, number, step, bytes, duck_core_subtrees(l->core, bank, NULL, 0), out, &done));
            assert_memory_equal(out, expected, values * sizeof *out);
            assert_true(values == 0 || done.experts > 0);
            free(step);
            free(expected);
            free(out);
        }
    assert_true(number >= 4);
}

static void a_golden_model_computed_by_duck_linux(void **state)
{
    (void)state;
    static const char *const cores[] = {"1", "3"}, *const mtu[] = {"1500", "9000"};
    struct model m;
    struct plan p;
    struct error err = {""};
    static const struct plan_duck ducks[2] = {{1, UINT64_MAX}, {2, UINT64_MAX}};
    assert_int_equal(model_open(&m, SOURCE_DIR "/tests/goldens/v32-tiny", &err), 0);
    assert_int_equal(plan_make(&p, &m.config, FP9_FP9, 0, ducks, 2, &err), 0);
    for (uint32_t i = 0; i < 2; i++) {
        struct duck_run *run = calloc(p.runs, sizeof *run);
        struct layers *l = golden_layers(&m, &p, i, run);
        struct ducky d = start(cores[i], mtu[i]);
        struct mini_host h = host_of(&d, l);
        assert_true(mini_discover(&h));
        assert_string_equal(h.hello.name, "test");
        h.terms.payload = (uint16_t)h.hello.payload;
        assert_int_equal(h.terms.payload, i ? WIRE_PAYLOAD_JUMBO : WIRE_PAYLOAD);
        assert_int_equal(mini_open(&h), 1);
        assert_true(mini_load(&h, l));
        check_steps(&h, l);
        stop(&d);
        layers_free(l);
        free(run);
    }
    plan_free(&p);
    model_close(&m);
}

static uint8_t *read_program(size_t *bytes)
{
    FILE *f = fopen(BINARY_DIR "/duck/fp9_kernels.elf", "rb");
    assert_non_null(f);
    uint8_t *elf = malloc(1 << 20);
    *bytes = fread(elf, 1, 1 << 20, f);
    fclose(f);
    assert_true(*bytes > 4096 && *bytes < 1 << 20);
    return elf;
}

/* 1/3! of silu's exponential, wherever the program has it, becomes something else. */
static void spoil_silu(uint8_t *elf, size_t bytes)
{
    static const uint8_t sixth[4] = {0xab, 0xaa, 0x2a, 0x3e};
    int found = 0;
    for (size_t i = 0; i + 4 <= bytes; i += 4)
        if (!memcmp(elf + i, sixth, 4)) {
            elf[i + 2] = 0x2b;
            found++;
        }
    assert_true(found > 0);
}

/* Proves that results come from the bytes that were sent and from no kernels of the duck's own. */
static void check_that_the_program_matters(struct mini_host *h, const struct layers *l, uint8_t *elf,
                                           size_t elf_bytes)
{
    static uint8_t answer[WIRE_PAYLOAD_JUMBO];
    size_t bytes, values;
    spoil_silu(elf, elf_bytes);
    assert_true(mini_ask(h, WIRE_CLOSE, NULL, 0, WIRE_CLOSED, WIRE_CLOSED, answer));
    assert_true(mini_discover(h));
    h->terms.program_hash = wire_object_hash(elf, elf_bytes);
    assert_int_equal(mini_open(h), 1);
    assert_int_equal(h->opened.program_held, 0);
    assert_int_equal(mini_put(h, WIRE_PROGRAM, 0, elf, elf_bytes, NULL), WIRE_PUT_HELD);
    static _Alignas(64) uint8_t memory[KAT_MEMORY];
    struct wire_kat k = {.seed = 7};
    assert_true(mini_ask(h, WIRE_KAT, &k, sizeof k, WIRE_KAT_REPLY, WIRE_KAT_REPLY, answer));
    memcpy(&k, answer, sizeof k);
    assert_int_not_equal(k.hash, kat_hash(&fp9_scalar, FP9_FP9, memory, 7)); // so it would not be admitted
    uint8_t *step = layers_step(l, 0, 1, 4, WIRE_F32, WIRE_F32, WIRE_PAYLOAD, 1, &bytes);
    float *expected = layers_expect(l, step, WIRE_PAYLOAD, &values), *out = calloc(values, sizeof *out);
    mini_send_step(h, 1, step, bytes);
    assert_true(mini_collect(h, 1, step, bytes, duck_core_subtrees(l->core, 0, NULL, 0), out, NULL));
    assert_memory_not_equal(out, expected, values * sizeof *out);
    free(step);
    free(expected);
    free(out);
}

/* With program_hash in OPEN nothing is computed before the program is there, and then by it. */
static void the_judges_program_computes(void **state)
{
    (void)state;
    static const struct duck_bank_shape banks[] = {{6, 1, 176}};
    static const struct duck_run runs[] = {{0, 0, 22}};
    static const struct duck_shape shape = {.hidden = 392, .banks = 1, .bank = banks, .runs = 1, .run = runs};
    static uint8_t answer[WIRE_PAYLOAD_JUMBO];
    struct layers *l = layers_make(&shape, 1, 5);
    struct ducky d = start("3", "1500");
    struct mini_host h = host_of(&d, l);
    struct wire_put_ack ack;
    size_t elf_bytes;
    uint8_t *elf = read_program(&elf_bytes);
    // a program that is none
    elf[1] = 'e';
    assert_true(mini_discover(&h));
    h.terms.program_hash = wire_object_hash(elf, elf_bytes);
    assert_int_equal(mini_open(&h), 1);
    assert_int_equal(h.opened.program_held, 0);
    assert_int_equal(mini_put(&h, WIRE_PROGRAM, 0, elf, elf_bytes, &ack), WIRE_PUT_REFUSED);
    assert_int_equal(ack.reason, WIRE_PUT_BAD_PROGRAM);
    assert_int_equal(ack.value, PROGRAM_NOT_ELF);
    assert_true(mini_ask(&h, WIRE_CLOSE, NULL, 0, WIRE_CLOSED, WIRE_CLOSED, answer));
    // the real one
    elf[1] = 'E';
    assert_true(mini_discover(&h));
    h.terms.program_hash = wire_object_hash(elf, elf_bytes);
    assert_int_equal(mini_open(&h), 1);
    assert_true(mini_load(&h, l));
    size_t bytes;
    uint8_t *step = layers_step(l, 0, 1, 4, WIRE_F32, WIRE_F32, WIRE_PAYLOAD, 1, &bytes);
    mini_send_step(&h, 1, step, bytes);
    do assert_true(mini_receive(&h, answer, MINI_DEADLINE_NS));
    while (h.last.type != WIRE_STEP_ACK);
    assert_int_equal(answer[0], WIRE_STEP_NOT_READY);
    free(step);
    assert_int_equal(mini_put(&h, WIRE_PROGRAM, 0, elf, elf_bytes, &ack), WIRE_PUT_HELD);
    check_steps(&h, l);
    // it stays, as weights do
    assert_true(mini_ask(&h, WIRE_CLOSE, NULL, 0, WIRE_CLOSED, WIRE_CLOSED, answer));
    assert_true(mini_discover(&h));
    assert_int_equal(mini_open(&h), 1);
    assert_int_equal(h.opened.program_held, 1);
    assert_int_equal(h.opened.units_held, l->units);
    check_steps(&h, l);
    check_that_the_program_matters(&h, l, elf, elf_bytes);
    stop(&d);
    free(elf);
    layers_free(l);
}

static void a_duck_may_be_paused(void **state)
{
    (void)state;
    static const struct duck_bank_shape banks[] = {{6, 1, 176}};
    static const struct duck_run runs[] = {{0, 0, 22}};
    static const struct duck_shape shape = {.hidden = 392, .banks = 1, .bank = banks, .runs = 1, .run = runs};
    struct layers *l = layers_make(&shape, 1, 5);
    struct ducky d = start("2", "1500");
    struct mini_host h = host_of(&d, l);
    assert_true(mini_discover(&h));
    assert_int_equal(mini_open(&h), 1);
    assert_true(mini_load(&h, l));
    kill(d.pid, SIGSTOP);
    size_t bytes, values;
    uint8_t *step = layers_step(l, 0, 16, 4, WIRE_F32, WIRE_F32, WIRE_PAYLOAD, 1, &bytes);
    float *expected = layers_expect(l, step, WIRE_PAYLOAD, &values), *out = calloc(values, sizeof *out);
    mini_send_step(&h, 1, step, bytes);
    usleep(300000);
    kill(d.pid, SIGCONT);
    assert_true(mini_collect(&h, 1, step, bytes, duck_core_subtrees(l->core, 0, NULL, 0), out, NULL));
    assert_memory_equal(out, expected, values * sizeof *out);
    stop(&d);
    free(step);
    free(expected);
    free(out);
    layers_free(l);
}

/* Exit status of duck-linux with these arguments; its stderr goes to `text`. stack_kib 0: as much as we have.
 */
static int run_with_stack(char *const arguments[], char text[512], rlim_t stack_kib)
{
    int pipe_fd[2], status = -1;
    assert_int_equal(pipe(pipe_fd), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(pipe_fd[1], 2);
        if (stack_kib) setrlimit(RLIMIT_STACK, &(struct rlimit){stack_kib << 10, stack_kib << 10});
        execv(BINARY_DIR "/duck-linux", arguments);
        _exit(127);
    }
    close(pipe_fd[1]);
    size_t length = 0; // all of it: who writes to a closed pipe dies
    for (ssize_t n; (n = read(pipe_fd[0], text + length, 511 - length)) > 0;) length += (size_t)n;
    text[length] = 0;
    close(pipe_fd[0]);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int run(char *const arguments[], char text[512])
{
    return run_with_stack(arguments, text, 0);
}

/* With less than a kernel takes of it there would be a fault. */
static void a_small_stack_is_said(void **state)
{
    (void)state;
    char text[512], *const arguments[] = {"duck-linux", "--key", key_file, "--udp", "192.0.2.1", NULL};
    assert_int_equal(run_with_stack(arguments, text, 256), 1);
    assert_non_null(strstr(text, "the stack may grow to 256 KiB, 512 are needed (ulimit -s 512)"));
    assert_int_equal(run_with_stack(arguments, text, 512), 1);
    assert_non_null(strstr(text, "192.0.2.1")); // no address of ours: it has come that far
}

static void wrong_arguments_are_named(void **state)
{
    (void)state;
    char *name = "duck-linux", *no_key = SOURCE_DIR "/LICENSE";
    const struct {
        char *arguments[8];
        int status;
        const char *says;
    } cases[] = {
        {{name, "--udp", "127.0.0.1"}, 2, "--key"},
        {{name, "--key", key_file}, 2, "--udp and --interface"},
        {{name, "--key", key_file, "--udp", "localhost"}, 2, "localhost"},
        {{name, "--key", key_file, "--interface", "lo"}, 2, "--address"},
        {{name, "--key", key_file, "--udp", "127.0.0.1", "--cores", "0"}, 2, "--cores"},
        {{name, "--key", key_file, "--udp", "127.0.0.1", "--memory", "1M"}, 2, "--memory"},
        {{name, "--key", key_file, "--udp", "127.0.0.1", "--port", "70000"}, 2, "--port"},
        {{name, "--key", "/nonexistent", "--udp", "127.0.0.1"}, 1, "/nonexistent"},
        {{name, "--key", no_key, "--udp", "127.0.0.1"}, 1, "32 hexadecimal digits"},
        {{name, "--key", key_file, "--udp", "192.0.2.1"}, 1, "192.0.2.1"},
        {{name, "--key", key_file, "--udp", "127.91.7.3", "--memory", "9000G"}, 1, "this machine has"},
        {{name, "--key", key_file, "--udp", "127.0.0.1", "--kernels", "mmx"}, 2, "mmx"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        assert_int_equal(run(cases[i].arguments, text), cases[i].status);
        const char *end = strchr(text, '\n'); // of the only line
        if (!strstr(text, cases[i].says) || strstr(text, "''") || !end || end[1])
            fail_msg("case %zu says: %s", i, text);
    }
}

int main(void)
{
    snprintf(key_file, sizeof key_file, "/tmp/duck-key-%d", (int)getpid());
    FILE *f = fopen(key_file, "w");
    if (!f) return 1;
    fputs("000102030405060708090a0b0c0d0e0f\n", f);
    fclose(f);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_golden_model_computed_by_duck_linux),
        cmocka_unit_test(the_judges_program_computes),
        cmocka_unit_test(a_duck_may_be_paused),
        cmocka_unit_test(a_small_stack_is_said),
        cmocka_unit_test(wrong_arguments_are_named),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(key_file);
    return rc;
}
