/* flock.c: `duckd flock VERB [DUCK ...]`. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "host/cli/doctor_print.h"
#include "host/cli/flock_care.h"
#include "host/cli/output.h"
#include "host/flock/transport.h"

#define OBEY_MS 3000u // for a duck to say that it will
#define WAKE_MS 3000u // magic packets: one a second

uint32_t flock_keep_wanted(struct net_status *status, uint32_t count)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++)
        if (status[i].wanted) status[n++] = status[i];
    return n;
}

static int doctor(const struct options *o, const struct flock_spec *spec, const bool *wanted,
                  struct error *err)
{
    struct net_status *status;
    int rc = net_look(spec, NET_WANT_STATS | NET_WANT_KAT, (enum fp9_format)o->expert_format, wanted,
                      spec->net->find_ms, &status, err);
    if (rc) return rc;
    struct doctor *d = calloc(1, sizeof *d);
    if (!d) rc = error_set(err, -ENOMEM, "no memory for the findings");
    if (!rc) {
        doctor_ducks(d, (enum fp9_format)o->expert_format, status, flock_keep_wanted(status, spec->ducks));
        size_t unwell = doctor_print(d, o->json, DOCTOR_ADVICE);
        rc = output_finish(err);
        if (!rc && unwell)
            rc = error_set(err, -ENODEV, "%zu of %zu ducks %s unwell", unwell, d->count,
                           unwell == 1 ? "is" : "are");
    }
    free(d);
    free(status);
    return rc;
}

/* Every duck that is to be woken has a MAC address, and its port reaches who has no address yet. */
static int can_wake(const struct flock_spec *spec, const bool *wanted, struct error *err)
{
    for (uint32_t i = 0; i < spec->ducks; i++) {
        const struct net_match *m = &spec->net->match[i];
        if (wanted && !wanted[i]) continue;
        if (!m->has_mac)
            return error_set(err, -EINVAL, "%s cannot be woken: the flock's file gives it no \"mac\"",
                             spec->duck[i].name);
        if (!spec->net->port[m->port].broadcast)
            return error_set(err, -EINVAL,
                             "%s cannot be woken: its port %" PRIu32 " has no \"broadcast\" address",
                             spec->duck[i].name, m->port);
    }
    return 0;
}

static int wake(const struct options *o, const struct flock_spec *spec, const bool *wanted, bool boot,
                struct error *err)
{
    struct net_status *status;
    int rc = can_wake(spec, wanted, err);
    if (!rc)
        rc = net_look(spec, NET_WANT_WAKE, FP9_FP9, wanted, boot ? 1000 * (uint32_t)o->wait_s : WAKE_MS,
                      &status, err);
    if (rc) return rc;
    uint32_t count = flock_keep_wanted(status, spec->ducks), missing = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct net_status *s = &status[i];
        missing += !s->found;
        if (s->found) {
            printf("%-14s up after %.1f s: %s, firmware %s\n", s->name, s->found_s, s->hello.name,
                   s->hello.firmware);
        } else if (boot) {
            struct doctor_silence why = doctor_silence(s);
            printf("%-14s %s: %s\n", s->name, why.found, why.advice);
        } else {
            printf("%-14s is woken, and has not answered yet\n", s->name);
        }
    }
    free(status);
    rc = output_finish(err);
    if (!rc && boot && missing)
        rc = error_set(err, -ENODEV, "%" PRIu32 " of %" PRIu32 " ducks have not come up within %.0f s",
                       missing, count, (double)o->wait_s);
    return rc;
}

/* A restart, or `off`. */
static int power(const struct flock_spec *spec, const bool *wanted, bool off, struct error *err)
{
    struct net_status *status;
    int rc = net_look(spec, off ? NET_WANT_OFF : NET_WANT_REBOOT, FP9_FP9, wanted,
                      spec->net->find_ms + OBEY_MS, &status, err);
    if (rc) return rc;
    uint32_t count = flock_keep_wanted(status, spec->ducks), failed = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct net_status *s = &status[i];
        char holder[16];
        net_show_address(s->hello.holder_address, holder);
        failed += !s->obeys;
        if (s->obeys)
            printf("%-14s %s\n", s->name, off ? "switches off" : "restarts");
        else if (s->found && s->hello.holder_session)
            printf("%-14s is held by %s: not %s\n", s->name, holder, off ? "switched off" : "restarted");
        else
            printf("%-14s %s\n", s->name, s->found ? "has not said that it will" : "does not answer");
    }
    free(status);
    rc = output_finish(err);
    if (!rc && failed)
        rc = error_set(err, -EBUSY, "%" PRIu32 " of %" PRIu32 " ducks do not %s", failed, count,
                       off ? "switch off" : "restart");
    return rc;
}

/* Which ducks are named; *out is NULL if none is: all are meant. The caller frees it. */
static int find_named(const struct options *o, const struct flock_spec *spec, bool **out, struct error *err)
{
    *out = NULL;
    if (o->ducks.count == 0) return 0;
    bool *wanted = calloc(spec->ducks, sizeof *wanted);
    if (!wanted) return error_set(err, -ENOMEM, "no memory for %" PRIu32 " ducks", spec->ducks);
    for (size_t k = 0; k < o->ducks.count; k++) {
        uint32_t i = 0;
        while (i < spec->ducks && strcmp(spec->duck[i].name, o->ducks.item[k]) != 0) i++;
        if (i == spec->ducks) {
            free(wanted);
            return error_set(err, -EINVAL, "no duck of %.200s is called '%.48s'", o->flock, o->ducks.item[k]);
        }
        wanted[i] = true;
    }
    *out = wanted;
    return 0;
}

int command_flock(const struct options *o, struct error *err)
{
    struct flock_spec spec;
    bool *wanted = NULL;
    int rc = flock_spec_read(&spec, o->flock, err);
    if (rc) return rc;
    if (!spec.transport->network) {
        rc = error_set(err, -EINVAL,
                       "flock %s: %.200s has local ducks only, they live in the process that uses them",
                       o->verb, o->flock);
    }
    if (!rc) rc = find_named(o, &spec, &wanted, err);
    if (rc) {
        flock_spec_free(&spec);
        return rc;
    }
    if (!strcmp(o->verb, "status"))
        rc = flock_status(o, &spec, wanted, err);
    else if (!strcmp(o->verb, "doctor"))
        rc = doctor(o, &spec, wanted, err);
    else if (!strcmp(o->verb, "reboot") || !strcmp(o->verb, "off"))
        rc = power(&spec, wanted, !strcmp(o->verb, "off"), err);
    else
        rc = wake(o, &spec, wanted, !strcmp(o->verb, "boot"), err);
    free(wanted);
    flock_spec_free(&spec);
    return rc;
}
