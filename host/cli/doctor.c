/* doctor.c: `duckd doctor`: a line per finding, the advice below it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/cli/commands.h"
#include "host/cli/doctor_print.h"
#include "host/cli/output.h"

static const char *const verdict_name[] = {
    [DOCTOR_OK] = "ok", [DOCTOR_ADVICE] = "advice", [DOCTOR_MISSING] = "MISSING"};

static void print_lines(const struct doctor *d)
{
    for (size_t i = 0; i < d->count; i++) {
        const struct finding *f = &d->finding[i];
        printf("%-8s %-18s %s%s%s\n", verdict_name[f->verdict], f->name, f->found, *f->advice ? " -> " : "",
               f->advice);
    }
}

static void print_text(const char *key, const char *text, const char *before)
{
    printf("%s\"%s\": ", before, key);
    output_json_string(stdout, text, strlen(text));
}

static void print_json(const struct doctor *d)
{
    for (size_t i = 0; i < d->count; i++) {
        const struct finding *f = &d->finding[i];
        print_text("check", f->name, i ? ",\n {" : "[{");
        print_text("verdict", f->verdict == DOCTOR_MISSING ? "missing" : verdict_name[f->verdict], ", ");
        print_text("found", f->found, ", ");
        print_text("advice", f->advice, ", ");
        putchar('}');
    }
    puts("]");
}

size_t doctor_print(const struct doctor *d, bool json, enum doctor_verdict from)
{
    size_t n = 0;
    (json ? print_json : print_lines)(d);
    for (size_t i = 0; i < d->count; i++) n += d->finding[i].verdict >= from;
    return n;
}

int command_doctor(const struct options *o, struct error *err)
{
    struct flock_spec spec = {0};
    int rc = o->flock ? flock_spec_read(&spec, o->flock, err) : 0;
    if (rc) return rc;
    struct doctor *d = calloc(1, sizeof *d);
    if (!d) {
        flock_spec_free(&spec);
        return error_set(err, -ENOMEM, "no memory for the findings");
    }
    d->root = o->root ? o->root : "";
    d->flock = o->flock ? &spec : NULL;
    doctor_examine(d);
    size_t count = d->count, missing = doctor_print(d, o->json, DOCTOR_MISSING);
    rc = output_finish(err);
    if (!rc && missing) rc = error_set(err, -ENODEV, "%zu of %zu things are missing", missing, count);
    flock_spec_free(&spec);
    free(d);
    return rc;
}
