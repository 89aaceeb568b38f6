/* plan_file.h: the plan that a network flock had last time, in its state folder.
 *
 * A plan made anew differs a little whenever a measured bandwidth, a memory size or `--mtp` does, and every
 * slice that moves has to be sent. So the old one stays, bank by bank, as long as it fits the ducks and keeps
 * nobody much longer busy than the new one would. A file that is missing, damaged or of another flock is no
 * plan: then weights may move, nothing worse. */
#ifndef DUCKD_HOST_FLOCK_PLAN_FILE_H
#define DUCKD_HOST_FLOCK_PLAN_FILE_H

#include <stdbool.h>

#include "host/flock/plan.h"
#include "host/flock/spec.h"

/* The runs of the file's plan take the place of those of `p` in every bank that both have. False: the file's
 * plan is not fit to stay; `p` is as it was. */
bool plan_file_stay(struct plan *p, const struct spec_duck *duck, const char *path);
/* Writes the plan, if the file does not say the same; banks of the file that `p` has not stay in it. */
int plan_file_write(const struct plan *p, const struct spec_duck *duck, const char *path, struct error *err);

#endif
