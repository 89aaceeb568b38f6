/* watchdog.h: a duck whose core 0 stops looking at the NIC restarts by itself: by the chipset's watchdog
 * where there is one, and by any other core that is awake now and then. */
#ifndef DUCK_UEFI_WATCHDOG_H
#define DUCK_UEFI_WATCHDOG_H

#include <stdint.h>

/* Core 0, once the clock runs; 0 seconds: none. */
void watchdog_start(uint32_t seconds);
/* Core 0, with every look at the NIC; the other cores begin to watch with the first. */
void watchdog_feed(void);
/* Any other core: restarts the machine if core 0 has not fed for too long. */
void watchdog_look(void);

#endif
