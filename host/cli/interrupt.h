/* interrupt.h: Ctrl-C as a question that loops ask, instead of the end of the process.
 *
 * While caught, SIGINT (and SIGTERM, SIGHUP) only set a flag; elsewhere they end the process as usual, so
 * that loading a model can always be broken off. */
#ifndef DUCKD_HOST_CLI_INTERRUPT_H
#define DUCKD_HOST_CLI_INTERRUPT_H

#include <stdbool.h>

/* `patient`: further signals only set the flag again (chat). Otherwise a second one ends the process. */
void interrupt_catch(bool patient);
void interrupt_release(void);
bool interrupt_seen(void);   // SIGINT, or one of the others
bool interrupt_ending(void); // SIGTERM or SIGHUP: the program should end
/* Readable from the first signal caught until the next interrupt_catch(); for polls. -1: no pipe could be
 * had. */
int interrupt_wake_fd(void);

#endif
