/* program_uefi.c: loading and entering the judge's program. */
#include "duck/uefi/program_uefi.h"

#include <string.h>

#include "duck/program_elf.h"
#include "duck/uefi/acpi.h"
#include "duck/uefi/clock.h"
#include "duck/uefi/console.h"
#include "duck/uefi/cores.h"
#include "duck/uefi/cpu.h"
#include "duck/uefi/user.h"
#include "duck/wire.h"

/* Ring 3's addresses: the page that calls the program, the program, stacks with nothing between them. */
#define GATE ((uint64_t)0x500000000000)
#define PROGRAM ((uint64_t)0x500000200000)
#define STACKS ((uint64_t)0x500040000000)
#define STACK_STEP ((uint64_t)2 << 20)
#define GRAIN ((uint64_t)2 << 20) // the arena's pages
#define BEAT 64u                  // bytes above a stack

static struct {
    struct paging *paging;
    uint64_t entry;          // 0: no program
    _Atomic uint32_t rights; // changes with every change of page rights
    _Atomic uint32_t inside; // cores in the program
    _Atomic uint32_t failed; // nobody enters
    int told;                // failed() has said it
} the;

/* Core 0 called everybody back. A core that does not come is stuck: its tick ends that (user.c). */
static void wait_until_left(void)
{
    uint64_t until = clock_now() + 5 * PROGRAM_TASK_NS;
    while (atomic_load(&the.inside)) {
        cpu_pause();
        if (clock_now() < until) continue;
        say("*** a core does not leave the program; restarting");
        acpi_restart();
    }
}

static void protect(uint64_t at, uint64_t bytes, uint64_t flags)
{
    if (paging_protect(the.paging, at, bytes, flags)) {
        say("*** pages at %lx are not as they should be; restarting", at);
        acpi_restart();
    }
    atomic_fetch_add(&the.rights, 1);
}

static void share(void *self, void *at, uint64_t bytes, enum program_rights rights)
{
    static const uint64_t flags[] = {[PROGRAM_NOTHING] = PAGE_WRITE | PAGE_NO_EXECUTE,
                                     [PROGRAM_READ] = PAGE_USER | PAGE_NO_EXECUTE,
                                     [PROGRAM_WRITE] = PAGE_USER | PAGE_WRITE | PAGE_NO_EXECUTE};
    (void)self;
    wait_until_left();
    protect((uint64_t)(uintptr_t)at, bytes, flags[rights]);
}

static int load(void *self, const uint8_t *elf, size_t bytes)
{
    (void)self;
    uint8_t *memory = (uint8_t *)(uintptr_t)PROGRAM;
    struct program_image image;
    wait_until_left();
    the.entry = 0;
    protect(PROGRAM, BOOT_PROGRAM, PAGE_WRITE | PAGE_NO_EXECUTE);
    int rc = program_check(elf, bytes, &image);
    if (rc) return rc;
    if (image.span > BOOT_PROGRAM) return PROGRAM_NO_MEMORY;
    memset(memory, 0, BOOT_PROGRAM);
    rc = program_place(elf, &image, memory, PROGRAM);
    if (rc) return rc;
    for (uint32_t i = 0; i < image.segments; i++) {
        const struct program_segment *s = &image.segment[i];
        protect(PROGRAM + s->at, s->bytes,
                PAGE_USER | (s->writable ? PAGE_WRITE : 0) | (s->executable ? 0 : PAGE_NO_EXECUTE));
    }
    user_program(PROGRAM, image.span);
    the.told = 0;
    atomic_store(&the.failed, 0);
    the.entry = PROGRAM + image.entry;
    return PROGRAM_OK;
}

static uint32_t run(void *self, struct team *team, uint32_t task, uint32_t most)
{
    (void)self;
    struct user *u = &core_self()->user;
    uint32_t left = TEAM_CLOSED;
    atomic_fetch_add(&the.inside, 1);
    if (!atomic_load(&the.failed) && the.entry) {
        uint32_t rights = atomic_load(&the.rights);
        if (u->rights != rights) __asm__ volatile("mov %%cr3, %%rax; mov %%rax, %%cr3" : : : "rax", "memory");
        u->rights = rights;
        left = user_run(GATE, the.entry, team, task, most);
    }
    atomic_fetch_sub(&the.inside, 1);
    return left;
}

static int failed(void *self, struct wire_fault *out)
{
    (void)self;
    if (the.told || !user_has_failed()) return 0;
    atomic_store(&the.failed, 1);
    cores_interrupt_others(); // who is inside leaves at once
    wait_until_left();
    user_fault(out);
    the.told = 1;
    say("*** the program on core %u: %s (vector %u, error code 0x%lx) at program+0x%lx, address %lx",
        out->core, out->text, out->vector, out->error_code, out->rip - out->program, out->cr2);
    for (uint32_t i = 0; i < out->frames; i++)
        say("***   called from program+0x%lx", out->backtrace[i] - out->program);
    return 1;
}

static int map_stack(struct boot *boot, struct core *c)
{
    void *memory = boot_pool_take(&boot->pool, BOOT_STACK);
    uint64_t at = STACKS + c->index * STACK_STEP;
    if (!memory || paging_map(the.paging, at, (uint64_t)(uintptr_t)memory, BOOT_STACK,
                              PAGE_USER | PAGE_WRITE | PAGE_NO_EXECUTE))
        return -1;
    c->user.stack = at;
    c->user.stack_end = at + BOOT_STACK - BEAT;
    c->user.beat = (_Atomic uint32_t *)(uintptr_t)c->user.stack_end;
    return 0;
}

const struct program_ops *program_uefi_start(struct boot *boot, struct paging *paging)
{
    static const struct program_ops ops = {
        .load = load, .run = run, .share = share, .grain = GRAIN, .failed = failed};
    void *gate = boot_pool_take(&boot->pool, 4096), *program = boot_pool_take(&boot->pool, BOOT_PROGRAM);
    the.paging = paging;
    if (!gate || !program) return NULL;
    memcpy(gate, user_page, (size_t)(user_page_end - user_page));
    if (paging_map(paging, GATE, (uint64_t)(uintptr_t)gate, 4096, PAGE_USER) ||
        paging_map(paging, PROGRAM, (uint64_t)(uintptr_t)program, BOOT_PROGRAM, PAGE_WRITE | PAGE_NO_EXECUTE))
        return NULL;
    for (uint32_t i = 0; i < cores_count; i++)
        if (map_stack(boot, &cores[i])) return NULL;
    return &ops;
}
