/* exercise.h: what every NIC driver must do, against a model of its device: a list of scenarios. A scenario
 * ends well, or with one line: what the model rejected, or what came out wrong. */
#ifndef TESTS_NIC_EXERCISE_H
#define TESTS_NIC_EXERCISE_H

#include "duck/nic/nic.h"
#include "tests/nic/model.h"

struct exercise {
    const char *name;
    void (*run)(void);
};

extern const struct exercise exercises[];
extern const uint32_t exercises_count;

/* NULL: all is well. Otherwise the complaint. */
const char *exercise_run(const struct exercise *e, const struct nic_model *model,
                         const struct nic_driver *driver);

/* A driver with one mistake in it, made from the driver's source (mutate.sh), and what must be said of it. */
struct mutant {
    const char *name;
    const struct nic_driver *driver;
    const char *complaint; // part of it
};

extern const struct mutant mutants[];
extern const uint32_t mutants_count;

#endif
