/* fuzz_safetensors.c: a safetensors file from arbitrary bytes. Every tensor of an accepted one lies in the
 * image, in order, without overlap: its bytes are read here, so that the sanitizer sees what does not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "accepted although not: %s\n", what);
    abort();
}

static void try_image(const uint8_t *data, size_t size)
{
    struct safetensors s;
    struct error err = {""};
    if (safetensors_parse(&s, data, size, "fuzz", &err)) {
        require(err.text[0] != '\0' && !strchr(err.text, '\n'), "one line says why");
        return;
    }
    uint64_t end = 8;
    for (size_t i = 0; i < s.count; i++) {
        const struct tensor *t = &s.tensors[i];
        require(t->bytes == 0 || t->file_offset >= end, "behind the one before");
        require(t->file_offset + t->bytes <= size, "inside the file");
        require(t->dims <= 8 && *t->name && strlen(t->name) <= SAFETENSORS_MAX_NAME, "shape and name");
        for (uint64_t b = 0; b < t->bytes; b++) (void)((const volatile uint8_t *)t->data)[b];
        if (t->bytes) end = t->file_offset + t->bytes;
    }
    safetensors_free(&s);
}

/* The input as a file and, because a mutation seldom keeps the length in front true, its rest as a header. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_image(data, size);
    if (size < 8) return 0;
    const uint64_t header = size - 8, data_bytes = 32;
    uint8_t *image = calloc(1, size + data_bytes);
    if (!image) abort();
    memcpy(image, &header, 8);
    memcpy(image + 8, data + 8, header);
    try_image(image, size + data_bytes);
    free(image);
    return 0;
}
