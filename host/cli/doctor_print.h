/* doctor_print.h: findings as lines or as JSON, for `duckd doctor` and `duckd flock doctor`. */
#ifndef DUCKD_HOST_CLI_DOCTOR_PRINT_H
#define DUCKD_HOST_CLI_DOCTOR_PRINT_H

#include "host/doctor/doctor.h"

/* Returns how many findings are as grave as `from`, or graver. */
size_t doctor_print(const struct doctor *d, bool json, enum doctor_verdict from);

#endif
