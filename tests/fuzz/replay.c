/* replay.c: runs a fuzz target without libFuzzer: every file of a corpus, then deterministic mutations.
 *
 * usage: fuzz-NAME CORPUS_DIR MUTATIONS. Files are taken in order of their names and the generator has a
 * fixed seed, so that a failure is the same everywhere; a crash leaves its input's number on stderr. */
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define INPUT_MAX_BYTES 65536u

struct seed {
    uint8_t *bytes;
    size_t size;
};

static uint64_t state = 0x6475636b64u;
static uint64_t next(uint64_t below)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

static size_t running; // number of the input being tried

static void say_where(int signal_number)
{
    (void)signal_number;
    char text[80];
    int n = snprintf(text, sizeof text, "replay: input %zu failed\n", running);
    ssize_t ignored = write(2, text, (size_t)n);
    (void)ignored;
}

/* The target gets exactly `size` bytes of heap: the sanitizer sees a read beyond them. */
static void run(const uint8_t *bytes, size_t size)
{
    uint8_t *exact = malloc(size ? size : 1);
    if (!exact) abort();
    memcpy(exact, bytes, size);
    LLVMFuzzerTestOneInput(exact, size);
    running++;
    free(exact);
}

static size_t mutate_once(uint8_t *b, size_t n, const struct seed *other)
{
    static const char *const tokens[] = {"0",
                                         "-1",
                                         "1e999",
                                         "9007199254740993",
                                         "18446744073709551616",
                                         "null",
                                         "{",
                                         "}",
                                         "[",
                                         "]",
                                         "\"",
                                         "\\u0000",
                                         ",",
                                         "[]",
                                         "{}",
                                         ":",
                                         "true",
                                         "1.5",
                                         "128",
                                         "\n"};
    size_t at = n ? next(n) : 0;
    switch (next(6)) {
    case 0: // a bit
        if (n) b[at] ^= (uint8_t)(1u << next(8));
        return n;
    case 1: // a byte
        if (n) b[at] = (uint8_t)next(256);
        return n;
    case 2: // cut out
    {
        size_t len = n ? next(n - at < 32 ? n - at + 1 : 32) : 0;
        memmove(b + at, b + at + len, n - at - len);
        return n - len;
    }
    case 3: // truncate
        return n ? (next(4) ? n - 1 : at) : 0;
    case 4: // insert something that means something
    {
        const char *t = tokens[next(sizeof tokens / sizeof *tokens)];
        size_t len = strlen(t);
        if (n + len > INPUT_MAX_BYTES) return n;
        memmove(b + at + len, b + at, n - at);
        memcpy(b + at, t, len);
        return n + len;
    }
    default: // a piece of another seed over this one
    {
        size_t from = other->size ? next(other->size) : 0, len = other->size ? next(other->size - from) : 0;
        if (len > n - at) len = n - at;
        memcpy(b + at, other->bytes + from, len);
        return n;
    }
    }
}

static int hidden(const struct dirent *d)
{
    return d->d_name[0] != '.';
}

static size_t load(const char *dir, struct seed seeds[256])
{
    struct dirent **list;
    int n = scandir(dir, &list, hidden, alphasort);
    size_t count = 0;
    for (int i = 0; i < n; i++) {
        char path[4400];
        snprintf(path, sizeof path, "%s/%s", dir, list[i]->d_name);
        free(list[i]);
        FILE *f = count < 256 ? fopen(path, "rb") : NULL;
        if (!f) continue;
        struct seed *s = &seeds[count++];
        s->bytes = malloc(INPUT_MAX_BYTES);
        if (!s->bytes) abort();
        s->size = fread(s->bytes, 1, INPUT_MAX_BYTES, f);
        fclose(f);
    }
    if (n >= 0) free(list);
    return count;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fputs("usage: fuzz-NAME CORPUS_DIR MUTATIONS\n", stderr);
        return 2;
    }
    static struct seed seeds[256];
    static uint8_t input[INPUT_MAX_BYTES];
    size_t count = load(argv[1], seeds), mutations = strtoul(argv[2], NULL, 10);
    if (count == 0) {
        fprintf(stderr, "replay: no seeds in %s\n", argv[1]);
        return 1;
    }
    (void)signal(SIGABRT, say_where);
    for (size_t i = 0; i < count; i++) run(seeds[i].bytes, seeds[i].size);
    for (size_t i = 0; i < mutations; i++) {
        const struct seed *s = &seeds[i % count];
        size_t n = s->size;
        memcpy(input, s->bytes, n);
        for (uint64_t times = 1 + next(4); times; times--) n = mutate_once(input, n, &seeds[next(count)]);
        run(input, n);
    }
    for (size_t i = 0; i < count; i++) free(seeds[i].bytes);
    printf("%zu seeds, %zu mutations\n", count, mutations);
    return 0;
}
