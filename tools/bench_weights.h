/* bench_weights.h: weights as a checkpoint has them, for timing: what is multiplied does not matter, but how
 * many are subnormal does. */
#ifndef DUCKD_TOOLS_BENCH_WEIGHTS_H
#define DUCKD_TOOLS_BENCH_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

/* n e4m3 bytes: normally distributed with a largest magnitude of 448, as blocks of 128 x 128 are scaled (one
 * in 9000 is subnormal); or, `rare`, subnormals alone. */
void bench_weights(uint8_t *out, size_t n, int rare);

#endif
