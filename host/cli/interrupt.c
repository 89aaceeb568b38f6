/* interrupt.c: two flags written by a signal handler. */
#include "host/cli/interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t seen, ending;
static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
static struct sigaction before[sizeof caught / sizeof caught[0]];

static void on_signal(int number)
{
    seen = 1;
    if (number != SIGINT) ending = 1;
}

void interrupt_catch(bool patient)
{
    seen = ending = 0;
    struct sigaction action = {.sa_handler = on_signal};
    if (!patient) action.sa_flags = (int)SA_RESETHAND;
    for (size_t i = 0; i < sizeof caught / sizeof caught[0]; i++) {
        sigaction(caught[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN) sigaction(caught[i], &action, NULL); // nohup stays nohup
    }
}

void interrupt_release(void)
{
    for (size_t i = 0; i < sizeof caught / sizeof caught[0]; i++) sigaction(caught[i], &before[i], NULL);
}

bool interrupt_seen(void)
{
    return seen;
}

bool interrupt_ending(void)
{
    return ending;
}

void interrupt_clear(void)
{
    seen = 0;
}
