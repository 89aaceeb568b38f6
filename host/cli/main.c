/* main.c: duckd. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "host/cli/commands.h"
#include "host/cli/output.h"
#include "host/util/log.h"
#include "host/util/trace.h"

static int run_command(const struct options *o, int argc, char **argv, struct error *err)
{
    switch (o->command) {
    case COMMAND_GENERATE:
        return command_generate(o, err);
    case COMMAND_CHAT:
        return command_chat(o, err);
    case COMMAND_BENCH:
        return command_bench(o, argc, argv, err);
    case COMMAND_LOGITS:
        return command_logits(o, err);
    case COMMAND_EVAL:
        return command_eval(o, err);
    case COMMAND_SERVE:
        return command_serve(o, err);
    case COMMAND_DOCTOR:
        return command_doctor(o, err);
    case COMMAND_FLOCK:
        return command_flock(o, err);
    case COMMAND_TOKENIZE:
        return command_tokenize(o, err);
    case COMMAND_PLAN:
        return command_plan(o, err);
    case COMMAND_NONE:
        break;
    }
    return 0;
}

/* The same with --trace: the file is known to be writable before anything is loaded, and is written also when
 * the command failed half-way. */
static int run_traced(const struct options *o, int argc, char **argv, struct error *err)
{
    struct output_file f;
    int rc = output_open(&f, o->trace, err);
    if (rc) return rc;
    rc = trace_start(err);
    if (rc) {
        output_abandon(&f);
        return rc;
    }
    rc = run_command(o, argc, argv, err);
    uint64_t lost = trace_write(f.stream);
    if (lost)
        log_notice("the trace holds the newest %u spans, %" PRIu64 " older ones are lost", TRACE_SPANS, lost);
    struct error why;
    int written = output_commit(&f, &why);
    if (!written || rc) return rc;
    *err = why;
    return written;
}

/* A standard stream that the caller closed stays an error, and its number must not become that of a file of
 * ours, into which answers or messages would then go. */
static void occupy_standard_streams(void)
{
    static const int useless[] = {O_WRONLY, O_RDONLY, O_RDONLY}; // to read from, to write to
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", useless[fd]) != fd) _exit(1);
    }
}

/* Kernels keep 320 KiB of sums on the stack of whichever thread runs them, and a thread's is as large as this
 * limit: with less it would be a fault instead of a message. */
static int check_stack(struct error *err)
{
    enum { NEEDS_KIB = 768 };
    struct rlimit l;
    if (getrlimit(RLIMIT_STACK, &l) || l.rlim_cur >= (rlim_t)NEEDS_KIB << 10) return 0;
    return error_set(err, -ENOMEM, "the stack may grow to %llu KiB, %d are needed (ulimit -s %d)",
                     (unsigned long long)l.rlim_cur >> 10, NEEDS_KIB, NEEDS_KIB);
}

/* The contract's exit status. */
static int exit_status(int rc)
{
    return rc == 0 ? 0 : rc == -EINTR ? 130 : 1;
}

int main(int argc, char **argv)
{
    struct options options;
    struct error err = {""};

    occupy_standard_streams();
    signal(SIGPIPE, SIG_IGN); // a closed stdout is an error code here, not a death
    signal(SIGXFSZ, SIG_IGN); // so is a file that may not grow (ulimit -f)
    if (options_parse(&options, argc, argv, &err) == OPTIONS_WRONG_USAGE) {
        const char *command = command_name(options.command);
        log_error("%s (try: duckd %s%s--help)", err.text, command ? command : "", command ? " " : "");
        options_free(&options);
        return 2;
    }
    log_set_level(options.quiet ? LOG_ERROR : options.verbose ? LOG_DETAIL : LOG_NOTICE);

    int rc = 0;
    if (options.help) {
        options_help(stdout, options.command);
    } else if (options.version) {
        puts("duckd " DUCKD_VERSION);
    } else {
        rc = check_stack(&err);
        if (!rc) // loads what it needs, writes its results to stdout
            rc = (options.trace ? run_traced : run_command)(&options, argc, argv, &err);
    }
    if (!rc) rc = output_finish(&err);
    if (rc && err.text[0]) log_error("%s", err.text);
    options_free(&options);
    return exit_status(rc);
}
