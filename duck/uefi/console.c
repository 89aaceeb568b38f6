/* console.c: a 16550 UART, polled, and the screen. A UART that is missing or stuck is noticed and left alone.
 */
#include "duck/uefi/console.h"

#include <stdarg.h>

#include "duck/uefi/cpu.h"
#include "duck/uefi/print.h"
#include "duck/uefi/screen.h"

/* PC16550D data sheet, 8.0 (registers). */
enum {
    COM1 = 0x3f8,
    UART_DATA = COM1,
    UART_IER = COM1 + 1,
    UART_DIVISOR_LOW = COM1,
    UART_DIVISOR_HIGH = COM1 + 1,
    UART_FCR = COM1 + 2,
    UART_LCR = COM1 + 3,
    UART_MCR = COM1 + 4,
    UART_LSR = COM1 + 5,
    UART_SCRATCH = COM1 + 7,
    LCR_8N1 = 3,
    LCR_DIVISOR = 0x80,
    FCR_ENABLE_CLEAR = 7,
    MCR_DTR_RTS = 3,
    LSR_CAN_SEND = 0x20,
};

static int is_there;
static unsigned char busy;
static struct screen screen;

void console_start(void)
{
    out8(UART_SCRATCH, 0x5a);
    is_there = in8(UART_SCRATCH) == 0x5a;
    if (!is_there) return;
    out8(UART_IER, 0);
    out8(UART_LCR, LCR_DIVISOR);
    out8(UART_DIVISOR_LOW, 1);
    out8(UART_DIVISOR_HIGH, 0);
    out8(UART_LCR, LCR_8N1);
    out8(UART_FCR, FCR_ENABLE_CLEAR);
    out8(UART_MCR, MCR_DTR_RTS);
}

void console_show(const struct boot_screen *s)
{
    screen = (struct screen){.pixels = (volatile uint32_t *)(uintptr_t)s->address,
                             .width = s->width,
                             .height = s->height,
                             .stride = s->stride,
                             .ink = s->ink};
    screen_start(&screen);
}

static void put(char c)
{
    enum { PATIENCE = 100000 }; // reads of a port: some 100 ms
    for (int i = 0; !(in8(UART_LSR) & LSR_CAN_SEND); i++) {
        if (i < PATIENCE) continue;
        is_there = 0;
        return;
    }
    out8(UART_DATA, (uint8_t)c);
}

void say(const char *format, ...)
{
    enum { LINE = 256, LOCK_PATIENCE = 10000000 };
    char line[LINE];
    va_list args;
    va_start(args, format);
    print_va(line, sizeof line, format, args);
    va_end(args);
    // A core that died inside must not silence the others.
    for (int i = 0; __atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE) && i < LOCK_PATIENCE; i++) cpu_pause();
    for (const char *c = line; *c && is_there; c++) put(*c);
    if (is_there) put('\r');
    if (is_there) put('\n');
    screen_line(&screen, line);
    __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
}
