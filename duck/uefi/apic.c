/* apic.c: the local APIC. */
#include "duck/uefi/apic.h"

#include "duck/uefi/cpu.h"

/* SDM vol. 3, table 11-1; the x2APIC's MSR is 0x800 + offset / 16 (table 11-6). */
enum {
    ID = 0x20,
    TASK_PRIORITY = 0x80,
    EOI = 0xb0,
    SPURIOUS = 0xf0,
    ICR_LOW = 0x300,
    ICR_HIGH = 0x310,
    LVT_TIMER = 0x320,
    LVT_LINT0 = 0x350,
    LVT_LINT1 = 0x360,
    LVT_ERROR = 0x370,
    TIMER_INITIAL = 0x380,
    TIMER_CURRENT = 0x390,
    TIMER_DIVIDE = 0x3e0,
    X2_BASE = 0x800,
    X2_ICR = 0x830,
    BASE_ENABLED = 1 << 11,
    BASE_X2 = 1 << 10,
    SOFTWARE_ENABLE = 1 << 8,
    ICR_PENDING = 1 << 12,
    ICR_ASSERT = 1 << 14,
    ICR_ALL_BUT_SELF = 3 << 18,
    LVT_MASKED = 1 << 16,
    DIVIDE_BY_16 = 3,
};

static uint32_t get(const struct apic *a, uint32_t offset)
{
    if (a->x2) return (uint32_t)a->access.read_msr(a->access.self, X2_BASE + offset / 16);
    return a->access.read(a->access.self, offset);
}

static void set(const struct apic *a, uint32_t offset, uint32_t value)
{
    if (a->x2)
        a->access.write_msr(a->access.self, X2_BASE + offset / 16, value);
    else
        a->access.write(a->access.self, offset, value);
}

int apic_start(struct apic *a, const struct apic_access *access)
{
    uint64_t base = access->read_msr(access->self, MSR_APIC_BASE);
    *a = (struct apic){*access, (base & BASE_X2) != 0};
    return base & BASE_ENABLED ? 0 : -1;
}

void apic_enable(const struct apic *a, uint8_t timer, uint8_t spurious)
{
    if (a->x2) { // an INIT sends a core back to xAPIC mode
        uint64_t base = a->access.read_msr(a->access.self, MSR_APIC_BASE);
        if (!(base & BASE_X2))
            a->access.write_msr(a->access.self, MSR_APIC_BASE, base | BASE_ENABLED | BASE_X2);
    }
    set(a, SPURIOUS, (uint32_t)SOFTWARE_ENABLE | spurious);
    set(a, TASK_PRIORITY, 0);
    set(a, LVT_LINT0, LVT_MASKED);
    set(a, LVT_LINT1, LVT_MASKED);
    set(a, LVT_ERROR, LVT_MASKED);
    set(a, TIMER_DIVIDE, DIVIDE_BY_16);
    set(a, LVT_TIMER, timer); // one-shot
}

uint32_t apic_id(const struct apic *a)
{
    return a->x2 ? get(a, ID) : get(a, ID) >> 24;
}

static int send(const struct apic *a, uint32_t to, uint32_t command)
{
    enum { PATIENCE = 1000000 };
    if (a->x2) { // one write, never pending (SDM vol. 3, 11.12.9)
        a->access.write_msr(a->access.self, X2_ICR, (uint64_t)to << 32 | command);
        return 0;
    }
    set(a, ICR_HIGH, to << 24);
    set(a, ICR_LOW, command);
    for (int i = 0; get(a, ICR_LOW) & ICR_PENDING; i++)
        if (i == PATIENCE) return -1;
    return 0;
}

int apic_send(const struct apic *a, uint32_t to, uint32_t mode_and_vector)
{
    return send(a, to, mode_and_vector | ICR_ASSERT);
}

int apic_send_others(const struct apic *a, uint32_t mode_and_vector)
{
    return send(a, 0, mode_and_vector | ICR_ASSERT | ICR_ALL_BUT_SELF);
}

void apic_end_of_interrupt(const struct apic *a)
{
    set(a, EOI, 0);
}

void apic_timer(const struct apic *a, uint32_t ticks)
{
    set(a, TIMER_INITIAL, ticks);
}

uint32_t apic_timer_left(const struct apic *a)
{
    return get(a, TIMER_CURRENT);
}
