/* program_linux.c: mmap, place, mprotect. The program runs in the process itself: a fault in it ends the
 * process, as a fault of the linked-in kernels would. */
#include "duck/linux/program_linux.h"

#include <stdatomic.h>
#include <sys/mman.h>

#include "duck/program_elf.h"

static struct {
    uint8_t *memory;
    uint64_t span;
    program_entry_fn *entry;
} the;

/* Cores inside the program. A finished step is not enough to unmap it: a core that found no further task may
 * still be on its way out. */
static _Atomic uint32_t inside;

/* The caller has drained and recalled the team: nobody enters, and who is inside has only a return left to
 * run. */
static void unload(void)
{
    while (atomic_load_explicit(&inside, memory_order_acquire) != 0) __builtin_ia32_pause();
    if (the.memory) munmap(the.memory, the.span);
    the.memory = NULL;
    the.entry = NULL;
}

static int protect(const struct program_image *image)
{
    for (uint32_t i = 0; i < image->segments; i++) {
        const struct program_segment *s = &image->segment[i];
        int rights = PROT_READ | (s->writable ? PROT_WRITE : 0) | (s->executable ? PROT_EXEC : 0);
        if (mprotect(the.memory + s->at, s->bytes, rights) < 0) return PROGRAM_NO_MEMORY;
    }
    return PROGRAM_OK;
}

static int load(void *self, const uint8_t *elf, size_t bytes)
{
    (void)self;
    struct program_image image;
    unload();
    int rc = program_check(elf, bytes, &image);
    if (rc) return rc;
    void *memory = mmap(NULL, image.span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return PROGRAM_NO_MEMORY;
    the.memory = memory;
    the.span = image.span;
    rc = program_place(elf, &image, memory, (uint64_t)(uintptr_t)memory);
    if (rc == PROGRAM_OK) rc = protect(&image);
    if (rc)
        unload();
    else
        the.entry = (program_entry_fn *)((uintptr_t)memory + image.entry);
    return rc;
}

/* The program's atomic operations are invisible to ThreadSanitizer: they are told to it here. */
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define BEFORE_PROGRAM(team) __tsan_release(&(team)->finished)
#define AFTER_PROGRAM(team) __tsan_acquire(&(team)->ticket)
#else
#define BEFORE_PROGRAM(team) ((void)0)
#define AFTER_PROGRAM(team) ((void)0)
#endif

static uint32_t run(void *self, struct team *team, uint32_t task, uint32_t most)
{
    (void)self;
    atomic_fetch_add_explicit(&inside, 1, memory_order_acquire);
    BEFORE_PROGRAM(team);
    _Atomic uint32_t beat = 1; // nobody looks: a stuck program is a stuck process
    uint32_t left = the.entry(team, task, most, &beat);
    AFTER_PROGRAM(team);
    atomic_fetch_sub_explicit(&inside, 1, memory_order_release);
    return left;
}

const struct program_ops program_linux = {.load = load, .run = run, .grain = 64};
