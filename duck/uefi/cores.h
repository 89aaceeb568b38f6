/* cores.h: all cores of the machine: starting them, telling them apart, sleeping and waking. */
#ifndef DUCK_UEFI_CORES_H
#define DUCK_UEFI_CORES_H

#include <stdatomic.h>
#include <stdint.h>

#include "duck/uefi/apic.h"
#include "duck/uefi/boot.h"
#include "duck/uefi/paging.h"
#include "duck/uefi/trap.h"
#include "duck/uefi/user.h"

struct core {
    uint32_t index; // first: core_index() reads it through GS
    uint32_t apic_id;
    uint64_t kernel_stack; // user_entries.S reads these two through GS: where ring 3 was entered,
    uint8_t *tss_stack;    // and what the TSS has for it
    struct user user;
    uint8_t *stack;
    void (*work)(struct core *self); // cores 1 ..: what it does with its life
    _Atomic uint32_t is_up;
    uint64_t kat, kat_e4m3; // what its vector units computed, of either format
    uint64_t bad;           // words of its share of the arena that did not keep a pattern
    uint32_t speed;         // how it was asked for its highest clock: enum speed_means
    uint32_t mhz;           // its clock while all cores tested memory; 0: not known
    struct trap_core trap;
};

extern struct core *cores; // (cores_count), those that run
extern uint32_t cores_count;

/* The machine's local APIC; core 0's segments, vector state and APIC. Returns NULL, or what is missing. */
const char *cores_start(struct boot *boot);
/* Starts the others one by one with INIT and SIPI; each calls work() on its own stack. Waits at most 200 ms
 * for each, and 2 s in a second round; those that do not come are left out, and stop if they come later. */
void cores_start_others(struct boot *boot, uint64_t cr3, void (*work)(struct core *self));

struct core *core_self(void);
uint32_t core_index(void);
int core_owns_stack(uint64_t address); // 1: address and the 16 bytes from there lie in a core's stack

void cores_end_of_interrupt(void);
/* Measures this machine's APIC timer; the clock must run. */
void cores_calibrate_timer(void);
/* This core sleeps until an interrupt, at most `ns`, unless *word is no longer `seen` (word may be NULL). */
void cores_sleep(const _Atomic uint32_t *word, uint32_t seen, uint64_t ns);
void cores_wake_others(void);
/* Interrupts the other cores, asleep or not. */
void cores_interrupt_others(void);
/* Interrupts this core once, if it is in ring 3 by then, with VECTOR_TIMER. cores_sleep() forgets it. */
void cores_tick(uint64_t ns);

#endif
