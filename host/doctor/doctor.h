/* doctor.h: is this machine fit to drive a flock? One finding per thing that a network flock needs of its
 * host.
 *
 * Reads /proc, /sys and /lib/firmware below a root that may be another folder than /, so that a copy of
 * another machine's can be judged (and tests make their own). Changes nothing. What is needed depends on the
 * flock: its ports with PCI addresses want everything, ports on interfaces little, UDP sockets nothing but
 * the CPU; without a flock nothing but the CPU is needed, and the rest is told as advice. */
#ifndef DUCKD_HOST_DOCTOR_DOCTOR_H
#define DUCKD_HOST_DOCTOR_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>

#include "host/flock/net/status.h"
#include "host/flock/spec.h"

enum doctor_verdict {
    DOCTOR_OK,
    DOCTOR_ADVICE,  // works without, better with
    DOCTOR_MISSING, // needed
};

struct finding {
    enum doctor_verdict verdict;
    char name[32];    // of the check, e.g. "hugepages", "nic 0000:81:00.0"
    char found[480];  // what is there
    char advice[240]; // what to do; empty if OK
};

#define DOCTOR_FINDINGS                                                                                      \
    288u // more are not made: one for each of 256 ducks; 16 ports, 4 each, and the machine's

struct doctor {
    const char *root;               // "" or a folder without a slash at its end
    const struct flock_spec *flock; // NULL: none
    size_t count;
    struct finding finding[DOCTOR_FINDINGS];
};

void doctor_examine(struct doctor *d);

/* One finding per duck, from what they have said (NET_WANT_STATS, NET_WANT_KAT): compared with what their
 * CPUs can do and with each other; `format`: what they are to keep experts as. Pure. */
void doctor_ducks(struct doctor *d, enum fp9_format format, const struct net_status *status, uint32_t count);

/* How far a duck that does not answer has come, and what to do. */
struct doctor_silence {
    char found[160];
    const char *advice;
};
struct doctor_silence doctor_silence(const struct net_status *status);

/* ---- for its files ---- */

/* `need`: what a verdict of "not there" is worth. */
void doctor__say(struct doctor *d, enum doctor_verdict verdict, const char *name, const char *advice,
                 const char *format, ...) __attribute__((format(printf, 5, 6)));
/* First `size` - 1 bytes of a file, without the newline at its end; false: it cannot be read. */
bool doctor__read(const struct doctor *d, char *out, size_t size, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
bool doctor__exists(const struct doctor *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Last part of what a symbolic link points to. */
bool doctor__link(const struct doctor *d, char *out, size_t size, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Entries of a folder but . and ..; -1: there is none. */
int doctor__entries(const struct doctor *d, const char *path);
/* Whether a list like "2,4-7" has the number. */
bool doctor__in_list(const char *list, unsigned number);

void doctor__nics(struct doctor *d); // nic.c

#endif
