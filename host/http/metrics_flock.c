/* metrics_flock.c: ducks and the stages of their steps for Prometheus. */
#include "host/http/metrics_flock.h"

#include <stdbool.h>

struct family {
    const char *name, *type, *help;
    double (*value)(const struct duck_stats *d);
    bool network; // known of ducks on a network only
};

#define VALUE(name, field, scale)                                                                            \
    static double name(const struct duck_stats *d)                                                           \
    {                                                                                                        \
        return (double)d->field * (scale);                                                                   \
    }
VALUE(steps, steps, 1)
VALUE(reads, expert_reads, 1)
VALUE(bytes, expert_bytes, 1)
VALUE(computing, compute_ns, 1e-9)
VALUE(weights, weight_bytes, 1)
VALUE(slices, slices, 1)
VALUE(present, link.present, 1)
VALUE(memory, link.memory_total, 1)
VALUE(memory_free, link.memory_free, 1)
VALUE(link_rate, link.link_mbps, 1e6)
VALUE(bandwidth, link.read_bytes_per_second, 1)
VALUE(frames_in, link.frames_in, 1)
VALUE(bytes_in, link.bytes_in, 1)
VALUE(frames_out, link.frames_out, 1)
VALUE(bytes_out, link.bytes_out, 1)
VALUE(asked_again, link.asked_again, 1)
VALUE(served_again, link.served_again, 1)
VALUE(steps_repeated, link.steps_repeated, 1)
VALUE(chunks_repeated, link.chunks_repeated, 1)
VALUE(duplicates, link.duplicates, 1)
VALUE(late, link.late, 1)
VALUE(waiting, link.wait_ns, 1e-9)

static const struct family families[] = {
    {"steps_total", "counter", "Steps answered.", steps, false},
    {"expert_reads_total", "counter", "Experts computed.", reads, false},
    {"expert_bytes_total", "counter", "Expert weights read, in bytes.", bytes, false},
    {"compute_seconds_total", "counter", "Time spent computing.", computing, false},
    {"weight_bytes", "gauge", "Resident expert weights.", weights, false},
    {"slices", "gauge", "Slices held, over all layers.", slices, false},
    {"present", "gauge", "1 while the duck takes part, 0 when it was lost.", present, true},
    {"memory_bytes", "gauge", "Memory of the duck's machine.", memory, true},
    {"memory_free_bytes", "gauge", "Memory for weights and steps.", memory_free, true},
    {"link_bits_per_second", "gauge", "Speed of its link, 0: unknown.", link_rate, true},
    {"read_bytes_per_second", "gauge", "Memory bandwidth it measured, 0: not measured.", bandwidth, true},
    {"received_frames_total", "counter", "Frames from the duck.", frames_in, true},
    {"received_bytes_total", "counter", "Bytes of them.", bytes_in, true},
    {"sent_frames_total", "counter", "Frames to this duck alone.", frames_out, true},
    {"sent_bytes_total", "counter", "Bytes of them.", bytes_out, true},
    {"asked_again_total", "counter", "Results that were asked for again.", asked_again, true},
    {"served_again_total", "counter", "Parts of steps that the duck asked for again.", served_again, true},
    {"steps_repeated_total", "counter", "Steps whose acknowledgement was late.", steps_repeated, true},
    {"chunks_repeated_total", "counter", "Chunks of weights that were sent again.", chunks_repeated, true},
    {"duplicates_total", "counter", "Results that came twice.", duplicates, true},
    {"late_total", "counter", "Frames of steps that were over.", late, true},
    {"wait_seconds_total", "counter", "Time steps waited in the duck's queue.", waiting, true},
};

static void put_label(struct buffer *b, const char *text)
{
    for (; *text; text++) {
        if (*text == '\\' || *text == '"') buffer_append(b, "\\", 1);
        if (*text != '\n') buffer_append(b, text, 1);
    }
}

static void put_head(struct buffer *b, const char *name, const char *type, const char *help)
{
    buffer_printf(b, "# HELP duckd_%s %s\n# TYPE duckd_%s %s\n", name, help, name, type);
}

static void put_family(struct buffer *b, const struct worker_figures *f, const struct family *family)
{
    bool begun = false;
    for (uint32_t i = 0; i < f->ducks; i++) {
        const struct duck_stats *d = &f->duck[i];
        if (family->network && !d->networked) continue;
        if (!begun)
            buffer_printf(b, "# HELP duckd_duck_%s %s\n# TYPE duckd_duck_%s %s\n", family->name, family->help,
                          family->name, family->type);
        begun = true;
        buffer_printf(b, "duckd_duck_%s{duck=\"", family->name);
        put_label(b, d->name);
        buffer_printf(b, "\"} %.15g\n", family->value(d));
    }
}

/* What does not change: joined with the others by the label duck. */
static void put_info(struct buffer *b, const struct worker_figures *f)
{
    bool begun = false;
    for (uint32_t i = 0; i < f->ducks; i++) {
        const struct duck_stats *d = &f->duck[i];
        if (!d->networked) continue;
        if (!begun) put_head(b, "duck_info", "gauge", "What a duck says of itself.");
        begun = true;
        const struct {
            const char *name, *value;
        } labels[] = {{"duck", d->name},
                      {"address", d->link.address},
                      {"firmware", d->link.firmware},
                      {"cpu", d->link.cpu}};
        for (size_t k = 0; k < sizeof labels / sizeof *labels; k++) {
            buffer_printf(b, "%s%s=\"", k ? "," : "duckd_duck_info{", labels[k].name);
            put_label(b, labels[k].value);
            buffer_text(b, "\"");
        }
        buffer_printf(b, ",cores=\"%u\"} 1\n", d->link.cores);
    }
}

static void put_stages(struct buffer *b, const struct flock_times *t)
{
    const struct {
        const char *name;
        uint64_t ns;
    } stages[] = {{"prepare", t->prepare_ns}, {"send", t->send_ns},     {"judge_wait", t->judge_wait_ns},
                  {"fetch", t->fetch_ns},     {"reduce", t->reduce_ns}, {"judge_gap", t->judge_gap_ns}};
    put_head(b, "flock_steps_total", "counter", "Steps of the flock.");
    buffer_printf(b, "duckd_flock_steps_total %llu\n", (unsigned long long)t->steps);
    put_head(b, "flock_stage_seconds_total", "counter", "Where steps spent their time.");
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
        buffer_printf(b, "duckd_flock_stage_seconds_total{stage=\"%s\"} %.9f\n", stages[i].name,
                      (double)stages[i].ns * 1e-9);
    put_head(b, "flock_duck_compute_seconds", "gauge", "Compute times of the ducks' latest steps.");
    buffer_printf(b,
                  "duckd_flock_duck_compute_seconds{quantile=\"0.5\"} %.6f\n"
                  "duckd_flock_duck_compute_seconds{quantile=\"0.9\"} %.6f\n"
                  "duckd_flock_duck_compute_seconds{quantile=\"1\"} %.6f\n",
                  t->duck_p50_us * 1e-6, t->duck_p90_us * 1e-6, t->duck_max_us * 1e-6);
    put_head(b, "flock_sessions_total", "counter",
             "Sessions with the ducks: a new one when a duck goes or comes.");
    buffer_printf(b, "duckd_flock_sessions_total %llu\n", (unsigned long long)t->sessions);
}

void metrics_flock(struct buffer *b, const struct worker_figures *f)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) put_family(b, f, &families[i]);
    put_info(b, f);
    if (f->networked) put_stages(b, &f->times);
}
