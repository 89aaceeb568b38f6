/* doctor_print.h: findings as lines or as JSON, for `duckd doctor` and `duckd flock doctor`. */
#ifndef DUCKD_HOST_CLI_DOCTOR_PRINT_H
#define DUCKD_HOST_CLI_DOCTOR_PRINT_H

#include "host/doctor/doctor.h"

/* -ENODEV if something is missing. */
int doctor_print(const struct doctor *d, bool json, struct error *err);

#endif
