/* plot.c: writes the script and runs gnuplot on it. */
#include "host/cli/plot.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "host/cli/latency_gp.h" // tools/plot/latency.gp as a string, made by CMake
#include "host/cli/output.h"
#include "host/util/clock.h"

#define GNUPLOT_DEADLINE_NS (60 * (uint64_t)1000000000)

extern char **environ;

/* What the script draws: data blocks of (index, ms) and the figures in its head. */
static void write_head(FILE *to, const char *name, const struct answer *a)
{
    struct answer_figures f;
    answer_measure(a, &f);
    fprintf(to,
            "# Draws %s.svg and %s.png: gnuplot %s.gp\n"
            "name = '%s'\ntitle = '",
            name, name, name, name);
    for (const char *c = name; *c; c++)
        fprintf(to, *c == '_' ? "\\_" : "%c", *c); // else it makes a subscript
    if (a->synthetic) fputs(" (synthetic: random weights)", to);
    fprintf(to, "'\nttft_ms = %.3f\nmean_ms = %.4f\ndecode_tok_s = %.3f\nprompt_tokens = %u\n", f.ttft_ms,
            f.tpot_ms, f.decode_tok_s, a->result.prompt_tokens);
    for (int accepted = 0; accepted < 2; accepted++) {
        size_t count = 0;
        fprintf(to, "$%s << END\n", accepted ? "fast" : "slow");
        for (size_t i = 1; i < a->count; i++) { // token 0 is the TTFT
            if (a->token[i].accepted != (accepted == 1)) continue;
            fprintf(to, "%zu %.4f\n", i, a->token[i].tpot_ms);
            count++;
        }
        fprintf(to, "END\n%s_count = %zu\n", accepted ? "fast" : "slow", count);
    }
    fputc('\n', to);
}

/* 0: it ended well; positive: its status; negative: could not be run. */
static int run_gnuplot(const char *dir, char *script)
{
    char program[] = "gnuplot";
    char *argv[] = {program, script, NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status = 0, code = posix_spawn_file_actions_init(&actions);
    if (code) return -code;
    posix_spawn_file_actions_addchdir_np(&actions, dir);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", 1 /* O_WRONLY */, 0);
    code = posix_spawnp(&pid, program, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (code) return -code;
    for (uint64_t start = clock_ns(); waitpid(pid, &status, WNOHANG) == 0;) {
        if (clock_ns() - start > GNUPLOT_DEADLINE_NS) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -ETIMEDOUT;
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* gnuplot ends well on a full disk, too: a drawing is there when its last bytes are. */
static int check_drawing(const char *dir, const char *name, const char *kind, const char *end,
                         struct error *err)
{
    char path[4096], tail[16];
    snprintf(path, sizeof path, "%s/%s.%s", dir, name, kind);
    FILE *f = fopen(path, "rb");
    if (!f) return error_set(err, -errno, "%s: cannot be read: %s", path, strerror(errno));
    fseek(f, -(long)sizeof tail, SEEK_END); // a file that is shorter is read from its beginning
    bool whole = memmem(tail, fread(tail, 1, sizeof tail, f), end, strlen(end)) != NULL;
    fclose(f);
    if (whole) return 0;
    unlink(path); // a half is no drawing
    return error_set(err, -EIO, "%s: gnuplot could not write all of it: is the disk full?", path);
}

int plot_latency(const char *dir, const char *name, const struct answer *a, bool *drawn, struct error *err)
{
    char path[4096], script[80];
    struct output_file file;
    *drawn = false;
    if (a->count < 2) return 0; // no time between tokens, nothing to draw
    snprintf(path, sizeof path, "%s/%s.gp", dir, name);
    snprintf(script, sizeof script, "%s.gp", name);
    int rc = output_open(&file, path, err);
    if (rc) return rc;
    write_head(file.stream, name, a);
    fputs(latency_gp, file.stream);
    rc = output_commit(&file, err);
    if (rc) return rc;
    int status = run_gnuplot(dir, script);
    if (status == -ENOENT) return 0;
    if (status < 0) return error_set(err, status, "gnuplot %s: %s", path, strerror(-status));
    if (status > 0) return error_set(err, -EIO, "gnuplot %s: ended with status %d", path, status);
    rc = check_drawing(dir, name, "svg", "</svg>", err);
    int png = check_drawing(dir, name, "png", "IEND\256B`\202", rc ? &(struct error){0} : err);
    *drawn = !rc && !png;
    return rc ? rc : png;
}
