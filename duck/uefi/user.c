/* user.c: visits to ring 3, and how they end. */
#include "duck/uefi/user.h"

#include <string.h>

#include "duck/program.h"
#include "duck/program_trace.h"
#include "duck/uefi/cores.h"
#include "duck/uefi/cpu.h"
#include "duck/uefi/trap.h"
#include "duck/uefi/watchdog.h"
#include "duck/wire.h"

enum { TICK_NS = 20000000, PATIENCE = PROGRAM_TASK_NS / TICK_NS };

uint32_t user_enter(uint64_t stack, uint64_t page, uint64_t entry, const uint64_t argument[4]);
_Noreturn void user_abandon(uint32_t result);
void user_exit(void);

enum fault_state { NO_FAULT, FAULT_WRITING, FAULT_READY };

static struct {
    uint64_t code, code_bytes;
    _Atomic uint32_t state;
    struct wire_fault fault;
} the;

void user_enable(void)
{
    enum { SMEP = 1 << 7, UMIP = 1 << 2 }; // leaf 7, EBX and ECX
    enum { TF = 0x100, IF = 0x200, DF = 0x400, IOPL = 0x3000, NT = 0x4000, AC = 0x40000 };
    struct cpuid f = cpuid(0, 0).a >= 7 ? cpuid(7, 0) : (struct cpuid){0};
    uint64_t cr4;
    __asm__ volatile("mov %%cr4, %0" : "=r"(cr4));
    if (f.b & SMEP) cr4 |= CR4_SMEP;
    if (f.c & UMIP) cr4 |= CR4_UMIP;
    __asm__ volatile("mov %0, %%cr4" : : "r"(cr4) : "memory");
    write_msr(MSR_EFER, read_msr(MSR_EFER) | EFER_SCE);
    write_msr(MSR_STAR, (uint64_t)TRAP_CODE << 32 | (uint64_t)(TRAP_USER_BASE | 3) << 48);
    write_msr(MSR_LSTAR, (uint64_t)(uintptr_t)user_exit);
    write_msr(MSR_FMASK, TF | IF | DF | IOPL | NT | AC);
    write_msr(MSR_OTHER_GS_BASE, 0);
}

void user_program(uint64_t code, uint64_t bytes)
{
    the.code = code;
    the.code_bytes = bytes;
    atomic_store(&the.state, NO_FAULT);
}

uint32_t user_run(uint64_t page, uint64_t entry, struct team *team, uint32_t task, uint32_t most)
{
    struct user *u = &core_self()->user;
    uint32_t beat = atomic_load_explicit(u->beat, memory_order_relaxed);
    atomic_store_explicit(u->beat, (beat + 1) | 1, memory_order_relaxed); // another one than was seen
    u->team = team;
    if (!u->ticks) cores_tick(TICK_NS);
    u->ticks = 1;
    const uint64_t argument[4] = {(uint64_t)(uintptr_t)team, task, most, (uint64_t)(uintptr_t)u->beat};
    return user_enter(u->stack_end, page, entry, argument);
}

int user_has_failed(void)
{
    return atomic_load_explicit(&the.state, memory_order_acquire) == FAULT_READY;
}

void user_fault(struct wire_fault *out)
{
    *out = the.fault;
}

/* ---- faults ---- */

static void take_registers(struct wire_fault *f, const struct trap *t)
{
    const uint64_t gpr[15] = {t->rax, t->rbx, t->rcx, t->rdx, t->rsi, t->rdi, t->rbp, t->r8,
                              t->r9,  t->r10, t->r11, t->r12, t->r13, t->r14, t->r15};
    memcpy(f->gpr, gpr, sizeof f->gpr);
    f->error_code = t->error_code;
    f->rip = t->rip;
    f->rsp = t->rsp;
    f->rflags = t->rflags;
    __asm__ volatile("mov %%cr2, %0" : "=r"(f->cr2));
}

/* The first one counts: the others' reasons may be its doing. */
static _Noreturn void fail(const struct trap *t, uint32_t vector, const char *text)
{
    uint32_t none = NO_FAULT;
    if (atomic_compare_exchange_strong(&the.state, &none, FAULT_WRITING)) {
        const struct core *c = core_self();
        struct wire_fault *f = &the.fault;
        memset(f, 0, sizeof *f);
        f->vector = vector;
        f->core = c->index;
        f->program = the.code;
        take_registers(f, t);
        size_t n = strlen(text);
        memcpy(f->text, text, n < sizeof f->text ? n : sizeof f->text - 1);
        if (t->rsp >= c->user.stack && t->rsp < c->user.stack_end)
            f->frames = program_trace((const uint8_t *)(uintptr_t)t->rsp, c->user.stack_end - t->rsp,
                                      (const uint8_t *)(uintptr_t)the.code, the.code, the.code_bytes,
                                      f->backtrace, 16);
        atomic_store_explicit(&the.state, FAULT_READY, memory_order_release);
    }
    user_abandon(TEAM_CLOSED);
}

void user_exception(const struct trap *t)
{
    enum { NMI = 2, DOUBLE_FAULT = 8, MACHINE_CHECK = 18 };
    if (t->vector == NMI || t->vector == DOUBLE_FAULT || t->vector == MACHINE_CHECK) return;
    fail(t, (uint32_t)t->vector, trap_name(t->vector));
}

/* 1: this core should get on, and has not for too long. Ticks are counted, not time: a virtual core may stand
 * still. */
static int is_stuck(struct user *u)
{
    uint32_t beat = atomic_load_explicit(u->beat, memory_order_relaxed);
    int should = (beat & 1) || atomic_load_explicit(&u->team->recall, memory_order_relaxed);
    u->same_beat = should && beat == u->beat_seen ? u->same_beat + 1 : 0;
    u->beat_seen = beat;
    return u->same_beat > PATIENCE;
}

void user_interrupt(const struct trap *t)
{
    struct user *u = &core_self()->user;
    if (atomic_load(&the.state) != NO_FAULT) user_abandon(TEAM_CLOSED);
    if (t->vector != VECTOR_TIMER) return;
    if (core_self()->index) watchdog_look();
    if (is_stuck(u)) fail(t, WIRE_FAULT_STUCK, "does not return");
    cores_tick(TICK_NS);
}
