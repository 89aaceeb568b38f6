/* bench_e4m3.h: the dot of a duck whose experts lie in memory as the checkpoint's e4m3 bytes.
 *
 * Not what duckd does (docs/format.md): it measures what saving the ninth bit would cost in instructions.
 * Panels of 8 outputs as in fp9.h; a vector is four inputs. An e4m3 byte with its lower seven bits at bits
 * 26..20 and its sign at 31 is an fp32 number of 2^-120 its value. Where fp9 has none, e4m3's subnormals are
 * subnormal operands then, which Intel's cores compute with a trap into microcode: right, but slow. */
#ifndef DUCKD_TOOLS_BENCH_E4M3_H
#define DUCKD_TOOLS_BENCH_E4M3_H

#include <stddef.h>
#include <stdint.h>

enum { E4M3_PANELS = 4 }; // read at once, as the dot of fp9 does

/* code[32 * lane + k]: weight k of a strip of 32 inputs; a panel is its strips one after the other, 8 bytes
 * an input. */
void e4m3_strip_put(uint8_t *at, const uint8_t code[256]);

/* Strips of normally distributed weights of blocks whose largest is 448, which repeat themselves: what is
 * read does not matter, but how many are subnormal does (one in 9000). */
void e4m3_fill(uint8_t *at, size_t bytes);

/* y[8 * p + lane] of E4M3_PANELS panels of `inputs` (a multiple of 32) with one scale per 128 inputs and
 * panel. The bits of fp9_dot_fn if x[i] is fp9's x[i] x 2^8. */
void e4m3_dot(const uint8_t *panels, size_t inputs, const float *scales, const float *x, float *y);

#endif
