/* recover.c: a duck is lost, a lost duck comes back: another plan, another session, the same answer.
 *
 * The plan without some ducks is always made from the plan of all, in the order of their loss, so that a duck
 * that comes back gets what it had, and the others give up what they took over. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/flock/flock_internal.h"
#include "host/util/clock.h"
#include "host/util/log.h"

/* The oldest unanswered step from number `from` on. */
static struct flock_lane *oldest(struct flock *f, uint64_t from)
{
    struct flock_lane *found = NULL;
    for (uint32_t i = 0; i < f->lanes; i++) {
        struct flock_lane *l = &f->lane[i];
        if (l->busy && l->number >= from && (!found || l->number < found->number)) found = l;
    }
    return found;
}

/* The plan of all ducks with the slices of those that are lost dealt to the others. */
static int plan_of_present(struct flock *f, struct plan *out, struct error *err)
{
    struct plan_duck *ducks = calloc(f->spec.ducks, sizeof *ducks);
    if (!ducks) return error_set(err, -ENOMEM, "no memory for a plan of %u ducks", f->spec.ducks);
    for (uint32_t i = 0; i < f->spec.ducks; i++) ducks[i] = f->spec.duck[i].plan;
    for (uint32_t i = 0; i < f->losts; i++) ducks[f->lost[i]].memory_bytes = 0; // nothing goes to them
    int rc = plan_copy(out, &f->home, err);
    for (uint32_t i = 0; i < f->losts && rc == 0; i++) {
        struct plan next;
        rc = plan_without(&next, out, f->lost[i], ducks, err);
        plan_free(out);
        *out = next;
    }
    free(ducks);
    return rc;
}

/* The session is over: another one for the plan, and what had not been answered is computed again. */
static int begin_again(struct flock *f, struct plan *next, struct error *err)
{
    const struct transport_ops *ops = f->transport->ops;
    plan_free(&f->plan);
    f->plan = *next;
    int rc = ops->resume(f->transport, &f->plan, err);
    if (rc == 0) rc = flock__load(f, err);
    uint64_t from = 0;
    for (struct flock_lane *l; rc == 0 && (l = oldest(f, from)); from = l->number + 1)
        rc = ops->submit(f->transport, (uint32_t)(l - f->lane), &l->step, err);
    return rc;
}

static int look_after(struct flock *f, uint32_t lost, struct error *err)
{
    int rc = 0;
    if (!f->nursery) {
        const struct nursery_options o = {.host = f->transport,
                                          .home = &f->home,
                                          .model = f->model,
                                          .transport = f->options,
                                          .duck = f->spec.duck};
        rc = nursery_open(&f->nursery, &o, err);
    }
    if (rc == 0) nursery_add(f->nursery, lost);
    return rc;
}

/* The session of those that are there begins; if they cannot hold the model, there is none until a lost duck
 * comes back. `lost`: why the newest of them is, NULL: none has been lost. */
static int go_on(struct flock *f, const char *lost, struct error *err)
{
    struct plan next;
    struct error why;
    int rc = plan_of_present(f, &next, &why);
    f->stranded = rc != 0;
    if (rc == 0) {
        if (lost) log_notice("%s: the others take over its slices", lost);
        return begin_again(f, &next, err);
    }
    const bool some = f->losts < f->spec.ducks; // what their memory lacks is worth telling
    return error_set(&f->stranded_by, -EHOSTDOWN,
                     "%u of %u ducks lost, and the flock cannot answer until %s is back%s%s", f->losts,
                     f->spec.ducks, f->losts == 1 ? f->spec.duck[f->lost[0]].name : "one of them",
                     some ? ": " : "", some ? why.text : "");
}

static void forget_loss(struct flock *f, uint32_t duck)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->losts; i++)
        if (f->lost[i] != duck) f->lost[n++] = f->lost[i];
    f->losts = n;
}

/* Its slices go to the others. `why` it is lost becomes a part of the message if there are none. */
static int go_on_without(struct flock *f, uint32_t lost, const char *why, struct error *err)
{
    int rc = f->home.bank ? 0 : plan_copy(&f->home, &f->plan, err);
    if (rc != 0) return rc;
    forget_loss(f, lost); // an earlier try may have failed half-way
    f->lost[f->losts++] = lost;
    rc = f->transport->ops->drop(f->transport, lost, err);
    if (rc != 0) return rc;
    rc = go_on(f, why, err);
    struct error other = {""};
    int looked = look_after(f, lost, &other);
    if (rc == 0 && looked != 0) *err = other;
    if (f->stranded) error_set(err, rc, "%s: %s", why, f->stranded_by.text);
    return rc != 0 ? rc : looked;
}

int flock__begin_without(struct flock *f, struct error *err)
{
    struct plan next;
    for (uint32_t i = 0; i < f->spec.ducks; i++)
        if (f->spec.duck[i].absent) f->lost[f->losts++] = i;
    int rc = f->losts ? plan_copy(&f->home, &f->plan, err) : 0;
    if (rc != 0 || f->losts == 0) return rc;
    rc = plan_of_present(f, &next, err);
    if (rc != 0) return rc;
    plan_free(&f->plan);
    f->plan = next;
    return 0;
}

int flock__look_for_absent(struct flock *f, struct error *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < f->spec.ducks && rc == 0; i++)
        if (f->spec.duck[i].absent) rc = look_after(f, i, err);
    return rc;
}

int flock__take_over(struct flock *f, int rc, struct error *err)
{
    const struct transport_ops *ops = f->transport->ops;
    for (int lost; rc < 0 && ops->lost && (lost = ops->lost(f->transport, NULL)) >= 0;) {
        struct error why = *err;
        uint64_t start = clock_ns();
        rc = go_on_without(f, (uint32_t)lost, why.text, err);
        if (rc == 0) log_notice("going on without it after %.1f s", (double)(clock_ns() - start) / 1e9);
        if (rc != 0 && ops->lost(f->transport, NULL) == lost) break; // it cannot be done
    }
    return rc;
}

static int go_on_with(struct flock *f, uint32_t duck, struct error *err)
{
    forget_loss(f, duck);
    int rc = f->transport->ops->take_back(f->transport, duck, err);
    return rc == 0 ? go_on(f, NULL, err) : rc;
}

int flock__take_back(struct flock *f, struct error *err)
{
    int duck = nursery_take(f->nursery);
    if (duck < 0) return 0;
    struct error why = {""};
    const char *name = f->spec.duck[duck].name;
    uint64_t start = clock_ns();
    int rc = go_on_with(f, (uint32_t)duck, &why);
    if (rc == 0) {
        log_notice("%s takes part again; the others waited %.1f s", name, (double)(clock_ns() - start) / 1e9);
        return 0;
    }
    if (f->stranded) return 0; // still too few
    // Another one may have been lost meanwhile; if not, it is this one again.
    rc = flock__take_over(f, rc, &why);
    if (rc == 0 || f->stranded) return 0;
    log_notice("%s: going on without %s", why.text, name);
    struct error again = why;
    rc = go_on_without(f, (uint32_t)duck, again.text, &why);
    if (rc != 0 && err) *err = why;
    return rc;
}
