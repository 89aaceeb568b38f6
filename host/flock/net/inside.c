/* inside.c: the thread of a duck that is in this process. */
#include "host/flock/net/inside.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "duck/duck.h"
#include "host/util/clock.h"
#include "host/util/log.h"

#define FRAMES 256u // on their way to the duck: a power of two
#define ADDRESS 0x7f000001u

struct inside {
    struct net_flock *flock;
    struct net_port *port;
    struct platform platform;
    struct link link;
    struct duck *duck;
    struct duck_options options;
    uint8_t *frame;                // (FRAMES, WIRE_DATAGRAM_MAX)
    uint32_t bytes[FRAMES];        // of each
    uint32_t first, taken, filled; // numbers of frames: [first, taken) are the duck's until it asks for more
    pthread_t thread, core[NET_INSIDE_CORES];
    uint32_t cores; // threads of further cores
    bool running;
    _Atomic uint32_t stop;
    int wake_fd;
    pthread_mutex_t mutex; // of sleeping cores
    pthread_cond_t cond;
    void (*next_wake)(void *self); // the workers'
    void *next_self;
};

/* ---- the wire ---- */

static uint8_t *buffer(void *self)
{
    struct inside *in = self;
    if (in->filled - in->first == FRAMES) return NULL;
    return in->frame + (size_t)(in->filled % FRAMES) * WIRE_DATAGRAM_MAX;
}

static void send_frame(void *self, const struct net_peer *to, uint32_t bytes)
{
    (void)to; // there is one duck
    struct inside *in = self;
    in->bytes[in->filled++ % FRAMES] = bytes;
}

static uint32_t duck_recv(void *self, struct datagram *out, uint32_t max)
{
    struct inside *in = self;
    in->first = in->taken;
    uint32_t n = 0;
    for (; n < max && in->taken != in->filled; n++, in->taken++) {
        uint32_t i = in->taken % FRAMES;
        out[n] = (struct datagram){.peer = {.address = ADDRESS, .port = WIRE_HOST_PORT},
                                   .bytes = in->bytes[i],
                                   .data = in->frame + (size_t)i * WIRE_DATAGRAM_MAX};
    }
    return n;
}

static uint32_t duck_send(void *self, struct datagram *d, uint32_t count)
{
    struct inside *in = self;
    const struct net_peer from = {.address = ADDRESS, .port = WIRE_DUCK_PORT};
    for (uint32_t i = 0; i < count; i++) net_port_input(in->port, &from, d[i].data, d[i].bytes, clock_ns());
    return count;
}

static void duck_state(void *self, struct link_state *out)
{
    (void)self;
    *out = (struct link_state){.payload = WIRE_PAYLOAD_JUMBO};
}

/* ---- the machine ---- */

static uint64_t now(void *self)
{
    (void)self;
    return clock_ns();
}

static void random_bytes(void *self, uint8_t *out, size_t bytes)
{
    (void)self;
    if (getrandom(out, bytes, 0) != (ssize_t)bytes) abort(); // cannot happen for so few
}

static void say(void *self, const char *line)
{
    log_detail("%s: %s", ((const struct inside *)self)->platform.name, line);
}

static void core_sleep(void *self, const _Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
    struct inside *in = self;
    const uint64_t until = clock_ns() + ns;
    pthread_mutex_lock(&in->mutex);
    if (atomic_load(word) == seen && !atomic_load(&in->stop)) clock_wait(&in->cond, &in->mutex, until);
    pthread_mutex_unlock(&in->mutex);
}

static void core_wake(void *self, const _Atomic uint32_t *word)
{
    (void)word;
    struct inside *in = self;
    if (in->cores == 0) return;
    pthread_mutex_lock(&in->mutex);
    pthread_cond_broadcast(&in->cond);
    pthread_mutex_unlock(&in->mutex);
}

static void idle(void *self, uint64_t ns)
{
    (void)self, (void)ns; // duck_run()'s; here work() sleeps for both
}

static void power(void *self, int off)
{
    (void)off;
    say(self, "is a part of this process and stays");
}

static void *core(void *arg)
{
    struct inside *in = arg;
    duck_worker(in->duck, &in->stop);
    return NULL;
}

static void *work(void *arg)
{
    struct inside *in = arg;
    struct pollfd p = {.fd = in->wake_fd, .events = POLLIN};
    while (!atomic_load(&in->stop)) {
        uint64_t wait = net_port_work(in->port, clock_ns()), more = duck_poll(in->duck), count;
        if (more < wait) wait = more;
        if (wait == 0 || in->taken != in->filled) continue;
        struct timespec t = {.tv_sec = (time_t)(wait / 1000000000), .tv_nsec = (long)(wait % 1000000000)};
        if (ppoll(&p, 1, &t, NULL) > 0 && read(in->wake_fd, &count, sizeof count) < 0)
            break; // it is readable
    }
    return NULL;
}

static void wake(void *self)
{
    struct inside *in = self;
    if (in->next_wake) in->next_wake(in->next_self);
    ssize_t n = write(in->wake_fd, &(uint64_t){1}, sizeof(uint64_t));
    (void)n; // full means that the thread is about to wake anyway
}

/* ---- start and stop ---- */

static int make_duck(struct inside *in, struct error *err)
{
    const struct net_inside *c = &in->flock->config->inside;
    in->frame = malloc((size_t)FRAMES * WIRE_DATAGRAM_MAX);
    void *memory = mmap(NULL, c->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) memory = NULL;
    in->platform = (struct platform){.self = in,
                                     .now = now,
                                     .random = random_bytes,
                                     .log = say,
                                     .sleep = core_sleep,
                                     .wake = core_wake,
                                     .idle = idle,
                                     .power = power,
                                     .spin_ns = 50000,
                                     .cores = c->cores,
                                     .memory = memory,
                                     .memory_bytes = c->memory_bytes,
                                     .memory_total = c->memory_bytes,
                                     .boot_id = clock_ns(),
                                     .name = "host",
                                     .firmware = "duckd"};
    in->link = (struct link){.self = in, .recv = duck_recv, .send = duck_send, .state = duck_state};
    in->options = (struct duck_options){.platform = &in->platform,
                                        .link = &in->link,
                                        .flock_key = in->flock->flock_key,
                                        .kernels = fp9_select(NULL)};
    if (!in->options.kernels)
        return error_set(err, -ENOTSUP, "the host's duck cannot compute: this CPU has no %s",
                         fp9_cpu_missing());
    in->duck = in->frame && memory ? duck_start(&in->options) : NULL;
    if (in->duck) return 0;
    return error_set(err, -ENOMEM, "no memory for the host's duck: %.1f GB", (double)c->memory_bytes * 1e-9);
}

void inside_stop(struct inside *in)
{
    if (!in) return;
    atomic_store(&in->stop, 1);
    if (in->running) {
        wake(in);
        pthread_join(in->thread, NULL);
        in->flock->wake = in->next_wake;
        in->flock->wake_self = in->next_self;
    }
    core_wake(in, NULL);
    for (uint32_t i = 0; i < in->cores; i++) pthread_join(in->core[i], NULL);
    if (in->wake_fd >= 0) close(in->wake_fd);
    if (in->platform.memory) munmap(in->platform.memory, in->platform.memory_bytes);
    pthread_mutex_destroy(&in->mutex);
    pthread_cond_destroy(&in->cond);
    free(in->frame);
    free(in);
}

static int start_threads(struct inside *in, struct error *err)
{
    int rc = 0;
    for (uint32_t i = 1; i < in->platform.cores && rc == 0; i++) {
        rc = -pthread_create(&in->core[in->cores], NULL, core, in);
        in->cores += rc == 0;
    }
    struct net_flock *f = in->flock;
    in->next_wake = f->wake;
    in->next_self = f->wake_self;
    if (rc == 0) rc = -pthread_create(&in->thread, NULL, work, in);
    if (rc) return error_set(err, rc, "no thread for the host's duck: %s", strerror(-rc));
    in->running = true;
    f->wake = wake;
    f->wake_self = in;
    return 0;
}

int inside_start(struct inside **out, struct net_flock *f, struct error *err)
{
    struct inside *in = calloc(1, sizeof *in);
    if (!in) return error_set(err, -ENOMEM, "no memory for the host's duck");
    in->flock = f;
    in->port = &f->port[f->ports - 1];
    pthread_mutex_init(&in->mutex, NULL);
    pthread_cond_init(&in->cond, NULL);
    in->port->io = (struct net_io){.self = in, .buffer = buffer, .send = send_frame};
    in->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = in->wake_fd < 0 ? error_set(err, -errno, "no eventfd: %s", strerror(errno)) : make_duck(in, err);
    if (!rc) rc = start_threads(in, err);
    if (rc) {
        inside_stop(in);
        return rc;
    }
    *out = in;
    return 0;
}
