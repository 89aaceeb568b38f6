/* interrupt.c: two flags written by a signal handler, and a pipe that wakes a poll: the handler may run in
 * any thread, and just before the poll begins. */
#include "host/cli/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static int wake[2] = {-1, -1};
static volatile sig_atomic_t seen, ending;
static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
static struct sigaction before[sizeof caught / sizeof caught[0]];

static void on_signal(int number)
{
    seen = 1;
    if (number != SIGINT) ending = 1;
    int kept = errno;
    if (write(wake[1], "", 1) < 0) {
        // full: a byte that wakes the poll is in it already
    }
    errno = kept;
}

static void forget(void)
{
    char old[64];
    seen = ending = 0;
    while (read(wake[0], old, sizeof old) > 0) {
    }
}

void interrupt_catch(bool patient)
{
    if (wake[0] < 0 && pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0) wake[0] = wake[1] = -1;
    forget();
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

int interrupt_wake_fd(void)
{
    return wake[0];
}
