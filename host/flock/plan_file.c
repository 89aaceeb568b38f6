/* plan_file.c: a plan as lines of text; reading checks all of it, writing replaces the file at once. */
#include "host/flock/plan_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEAD "duckd plan 1"
#define BUSIER 1.1 // the old plan's slowest duck against the new plan's: less is not worth sending weights
#define MOST_BANKS 4096u

struct reader {
    FILE *file;
    char line[160];
};

/* The next line without its end; false: there is none. */
static bool next_line(struct reader *r)
{
    if (!fgets(r->line, sizeof r->line, r->file)) return false;
    r->line[strcspn(r->line, "\n")] = 0;
    return true;
}

static bool read_head(struct reader *r, struct plan *p, const struct spec_duck *duck, uint32_t ducks)
{
    uint32_t count;
    if (!next_line(r) || strcmp(r->line, HEAD) != 0) return false;
    if (!next_line(r) || sscanf(r->line, "hidden %u banks %u ducks %u", &p->hidden, &p->banks, &count) != 3)
        return false;
    if (count != ducks || p->banks == 0 || p->banks > MOST_BANKS) return false;
    for (uint32_t i = 0; i < ducks; i++)
        if (!next_line(r) || strncmp(r->line, "duck ", 5) != 0 || strcmp(r->line + 5, duck[i].name) != 0)
            return false;
    p->ducks = ducks;
    return true;
}

/* A bank and its runs, which hold every slice once. */
static bool read_bank(struct reader *r, struct plan *p, uint32_t bank, uint32_t *room)
{
    struct duck_bank_shape *s = &p->bank[bank];
    if (!next_line(r) || sscanf(r->line, "bank %u %u %u", &s->routed, &s->always, &s->width) != 3)
        return false;
    for (uint32_t at = 0, slices = s->width / FP9_LANES; at < slices;) {
        struct plan_run run = {.bank = bank};
        if (!next_line(r) || sscanf(r->line, "run %u %u %u", &run.duck, &run.first, &run.count) != 3)
            return false;
        if (run.duck >= p->ducks || run.first != at || run.count == 0 || run.count > slices - at)
            return false;
        if (p->runs == *room) {
            *room = 2 * *room + 64;
            struct plan_run *more = realloc(p->run, *room * sizeof *more);
            if (!more) return false;
            p->run = more;
        }
        p->run[p->runs++] = run;
        at += run.count;
    }
    return true;
}

/* False: there is no such plan; *out is empty. */
static bool read_plan(struct plan *out, const struct spec_duck *duck, uint32_t ducks, const char *path)
{
    struct reader r = {.file = fopen(path, "re")};
    uint32_t room = 0;
    *out = (struct plan){0};
    if (!r.file) return false;
    bool good = read_head(&r, out, duck, ducks);
    if (good) out->bank = calloc(out->banks, sizeof *out->bank);
    good = good && out->bank;
    for (uint32_t b = 0; good && b < out->banks; b++) good = read_bank(&r, out, b, &room);
    fclose(r.file);
    if (!good) plan_free(out);
    return good;
}

static bool same_bank(const struct plan *a, const struct plan *b, uint32_t bank)
{
    return bank < a->banks && bank < b->banks && a->hidden == b->hidden &&
           memcmp(&a->bank[bank], &b->bank[bank], sizeof a->bank[bank]) == 0;
}

/* `first`'s runs where it has a bank of `like`, else `second`'s; the banks are those of `like`. False: no
 * memory. */
static bool merge(struct plan *out, const struct plan *like, const struct plan *first,
                  const struct plan *second)
{
    *out = (struct plan){
        .hidden = like->hidden, .banks = like->banks, .ducks = like->ducks, .format = like->format};
    out->bank = malloc(like->banks * sizeof *out->bank);
    out->run = malloc(((size_t)first->runs + second->runs) * sizeof *out->run);
    if (!out->bank || !out->run) {
        plan_free(out);
        return false;
    }
    memcpy(out->bank, like->bank, like->banks * sizeof *out->bank);
    for (uint32_t b = 0; b < like->banks; b++) {
        const struct plan *from = same_bank(first, like, b) ? first : second;
        for (uint32_t i = 0; i < from->runs; i++)
            if (from->run[i].bank == b) out->run[out->runs++] = from->run[i];
    }
    return true;
}

/* How long the busiest duck works, in bytes over weight; negative: one's memory does not hold its part. */
static double busiest(const struct plan *p, const struct spec_duck *duck)
{
    double most = 0;
    for (uint32_t d = 0; d < p->ducks; d++) {
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < p->runs; i++) {
            const struct plan_run *r = &p->run[i];
            if (r->duck == d) bytes += plan_run_bytes(p->format, p->hidden, &p->bank[r->bank], r->count);
        }
        if (bytes > duck[d].plan.memory_bytes) return -1;
        double time = (double)bytes / duck[d].plan.weight;
        if (time > most) most = time;
    }
    return most;
}

bool plan_file_stay(struct plan *p, const struct spec_duck *duck, const char *path)
{
    struct plan old, merged;
    if (!read_plan(&old, duck, p->ducks, path)) return false;
    bool good = merge(&merged, p, &old, p);
    plan_free(&old);
    if (!good) return false;
    double time = busiest(&merged, duck);
    good = time >= 0 && time <= BUSIER * busiest(p, duck);
    if (good) {
        struct plan made = *p;
        *p = merged;
        merged = made;
    }
    plan_free(&merged);
    return good;
}

static bool same_plan(const struct plan *a, const struct plan *b)
{
    return a->banks == b->banks && a->runs == b->runs && a->hidden == b->hidden &&
           memcmp(a->bank, b->bank, a->banks * sizeof *a->bank) == 0 &&
           memcmp(a->run, b->run, a->runs * sizeof *a->run) == 0;
}

static bool write_lines(FILE *f, const struct plan *p, const struct spec_duck *duck)
{
    fprintf(f, HEAD "\nhidden %u banks %u ducks %u\n", p->hidden, p->banks, p->ducks);
    for (uint32_t i = 0; i < p->ducks; i++) fprintf(f, "duck %s\n", duck[i].name);
    uint32_t i = 0;
    for (uint32_t b = 0; b < p->banks; b++) {
        fprintf(f, "bank %u %u %u\n", p->bank[b].routed, p->bank[b].always, p->bank[b].width);
        for (; i < p->runs && p->run[i].bank == b; i++)
            fprintf(f, "run %u %u %u\n", p->run[i].duck, p->run[i].first, p->run[i].count);
    }
    return !ferror(f);
}

static int replace(const struct plan *p, const struct spec_duck *duck, const char *path, struct error *err)
{
    char beside[600];
    snprintf(beside, sizeof beside, "%s.new", path);
    FILE *f = fopen(beside, "we");
    bool good = f && write_lines(f, p, duck);
    if (f) good = fclose(f) == 0 && good;
    if (good && rename(beside, path) == 0) return 0;
    int code = errno;
    unlink(beside);
    return error_set(err, -code, "%s cannot be written: %s", path, strerror(code));
}

int plan_file_write(const struct plan *p, const struct spec_duck *duck, const char *path, struct error *err)
{
    struct plan old, all = {0};
    int rc = 0;
    bool known = read_plan(&old, duck, p->ducks, path);
    bool more = known && old.banks > p->banks && same_bank(&old, p, p->banks - 1);
    if (more && !merge(&all, &old, p, &old)) more = false;
    const struct plan *whole = more ? &all : p;
    if (!known || !same_plan(&old, whole)) rc = replace(whole, duck, path, err);
    plan_free(&old);
    plan_free(&all);
    return rc;
}
