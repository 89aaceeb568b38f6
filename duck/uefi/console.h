/* console.h: the firmware's log: lines to the serial port (COM1, 115200 8N1) where there is one. Any core. */
#ifndef DUCK_UEFI_CONSOLE_H
#define DUCK_UEFI_CONSOLE_H

void console_start(void);
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
