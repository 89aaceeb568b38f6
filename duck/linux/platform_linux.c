/* platform_linux.c: clock, memory, sleep and signals of a duck that is a Linux process. */
#include "duck/linux/platform_linux.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "duck/linux/bandwidth.h"
#include "duck/linux/program_linux.h"
#include "duck/wire.h"

#define REAL_FROM                                                                                            \
    ((uint64_t)1 << 30) // smaller ducks are tests: many on one machine, huge pages would only cost

_Atomic uint32_t platform_linux_stop;

static struct {
    int fd;
    int (*gone)(int error);
    int was_down; // the kernel says that an interface is down, and no more when it is then taken away
    _Atomic uint32_t sleepers;
    char name[32];
} the;

void linux_say(const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(stderr, "duck-linux%s%s: %s\n", the.name[0] ? " " : "", the.name, line);
}

uint64_t linux_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t linux_now(void *self)
{
    (void)self;
    return linux_clock_ns();
}

static void linux_random(void *self, uint8_t *out, size_t bytes)
{
    (void)self;
    while (bytes) {
        ssize_t n = getrandom(out, bytes, 0);
        if (n < 0) continue; // a signal: the only way it can fail
        out += n;
        bytes -= (size_t)n;
    }
}

static void linux_log(void *self, const char *line)
{
    (void)self;
    linux_say("%s", line);
}

/* ---- sleeping ---- */

static void linux_sleep(void *self, const _Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
    (void)self;
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    atomic_fetch_add(&the.sleepers, 1);
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &t, NULL, 0);
    atomic_fetch_sub(&the.sleepers, 1);
}

static void linux_wake(void *self, const _Atomic uint32_t *word)
{
    (void)self;
    atomic_thread_fence(memory_order_seq_cst); // the word's change before the look at the sleepers
    if (atomic_load(&the.sleepers)) syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void linux_idle(void *self, uint64_t ns)
{
    (void)self;
    struct pollfd p = {.fd = the.fd, .events = POLLIN};
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    int ready = ppoll(&p, 1, &t, NULL), error = 0;
    if (ready < 0 || (ready == 0 && !the.was_down)) return;
    if (p.revents & (POLLERR | POLLHUP | POLLNVAL)) {
        socklen_t size = sizeof error; // reading it ends it: else there would be no sleep any more
        getsockopt(the.fd, SOL_SOCKET, SO_ERROR, &error, &size);
        the.was_down = 1;
    } else if (ready) {
        return; // frames
    }
    if (the.gone && the.gone(error)) atomic_store(&platform_linux_stop, PLATFORM_LINUX_FAILED);
}

/* A process must not switch off a machine that was only lent: it ends. */
static void linux_power(void *self, int off)
{
    (void)self;
    linux_say("asked to %s: this process ends", off ? "power off" : "reboot");
    atomic_store(&platform_linux_stop, 1);
}

static void on_signal(int number)
{
    (void)number;
    atomic_store(&platform_linux_stop, 1);
}

/* ---- what HELLO says ---- */

static uint64_t total_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

static void cpu_name(char out[48])
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        char *value = strstr(line, ": ");
        if (strncmp(line, "model name", 10) != 0 || !value) continue;
        value[strcspn(value, "\n")] = 0;
        snprintf(out, 48, "%s", value + 2);
        break;
    }
    if (f) fclose(f);
}

/* Tells builds apart: the hash of this program's file; 0: unreadable. */
static uint64_t own_hash(void)
{
    FILE *f = fopen("/proc/self/exe", "rbe");
    struct stat st;
    uint64_t hash = 0;
    if (f && fstat(fileno(f), &st) == 0 && st.st_size > 0) {
        uint8_t *bytes = malloc((size_t)st.st_size);
        if (bytes && fread(bytes, 1, (size_t)st.st_size, f) == (size_t)st.st_size)
            hash = wire_object_hash(bytes, (size_t)st.st_size);
        free(bytes);
    }
    if (f) fclose(f);
    return hash;
}

static uint32_t features(void)
{
    __builtin_cpu_init();
    uint32_t needed = fp9_cpu_missing() ? 0 : WIRE_AVX2 | WIRE_FMA | WIRE_F16C;
    return needed | (__builtin_cpu_supports("avx512f") ? WIRE_AVX512 : 0);
}

int platform_linux_open(struct platform *out, const struct linux_options *o)
{
    snprintf(the.name, sizeof the.name, "%s", o->name);
    the.fd = o->fd;
    the.gone = o->gone;
    const uint64_t total = total_memory();
    if (total && o->memory_bytes > total) { // it could be mapped, and would be the end when it is filled
        linux_say("--memory is %llu MB, this machine has %llu MB",
                  (unsigned long long)(o->memory_bytes >> 20), (unsigned long long)(total >> 20));
        return -1;
    }
    void *memory = mmap(NULL, o->memory_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        linux_say("cannot map %llu MB: %s", (unsigned long long)(o->memory_bytes >> 20), strerror(errno));
        return -1;
    }
    if (o->memory_bytes >= REAL_FROM) madvise(memory, o->memory_bytes, MADV_HUGEPAGE); // else only slower
    *out = (struct platform){.self = &the,
                             .now = linux_now,
                             .random = linux_random,
                             .log = linux_log,
                             .sleep = linux_sleep,
                             .wake = linux_wake,
                             .idle = linux_idle,
                             .power = linux_power,
                             .program = &program_linux,
                             .spin_ns = o->spin_ns,
                             .cores = o->cores,
                             .memory = memory,
                             .memory_bytes = o->memory_bytes,
                             .memory_total = total,
                             .firmware_hash = own_hash(),
                             .read_bytes_per_second =
                                 o->memory_bytes >= REAL_FROM ? bandwidth_measure(o->cores) : 0,
                             .features = features(),
                             .firmware = "duck-linux 0.1.0"};
    linux_random(NULL, (uint8_t *)&out->boot_id, sizeof out->boot_id);
    snprintf(out->name, sizeof out->name, "%s", o->name);
    cpu_name(out->cpu);
    struct sigaction act = {.sa_handler = on_signal}; // no SA_RESTART: waits end
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGINT, &act, NULL);
    return 0;
}
