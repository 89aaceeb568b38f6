/* console.h: the firmware's log: lines to the serial port (COM1, 115200 8N1) and the screen, where there are
 * any. Any core. */
#ifndef DUCK_UEFI_CONSOLE_H
#define DUCK_UEFI_CONSOLE_H

#include "duck/uefi/boot.h"

void console_start(void);
/* Core 0, once the screen is mapped at its own address: draws what is said from now on as well. */
void console_show(const struct boot_screen *s);
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
