/* program_trace.h: how a program that failed came to where it was, for struct wire_fault. Freestanding. */
#ifndef DUCK_PROGRAM_TRACE_H
#define DUCK_PROGRAM_TRACE_H

#include <stddef.h>
#include <stdint.h>

/* Words of the stack, from its top on, that point behind a call instruction in `code`, which the program has
 * at address `at`: return addresses, innermost first, old ones among them. (The program keeps no frame
 * pointers: they would cost its kernels a register.) Writes at most `max`, returns how many. */
uint32_t program_trace(const uint8_t *stack, size_t bytes, const uint8_t *code, uint64_t at,
                       uint64_t code_bytes, uint64_t *out, uint32_t max);

#endif
