/* options.h: the words that a duck is started with, from duck.conf beside the image on the boot server, a
 * boot entry, or QEMU's -append:
 *   key=32 hex digits   the flock's key
 *   address=10.21.1.5   static; else DHCP
 *   name=TEXT           what the duck calls itself
 *   spin_us=N           idle cores sleep after so long
 *   watchdog_s=N        restarts after so many seconds in which core 0 did not get on (30; 0: never)
 *   hang_after_s=N      core 0 stops N seconds after the start: shows whether the watchdog works here
 *   fault_after_s=N     core 0 runs into an exception N seconds after the start: shows its report
 * Unknown words are named in the log and ignored: loaders put words of their own there. */
#ifndef DUCK_UEFI_OPTIONS_H
#define DUCK_UEFI_OPTIONS_H

#include <stdint.h>

enum { OPTIONS_WATCHDOG_S = 30 };

struct options {
    uint8_t key[16];
    int has_key;
    uint32_t address; // most significant byte first; 0: DHCP
    char name[32];
    uint32_t spin_us; // 0: not given
    uint32_t watchdog_s;
    uint32_t hang_after_s, fault_after_s; // 0: never
    char bad[48];                         // the first word that was not understood
};

void options_read(struct options *o, const char *text);

#endif
