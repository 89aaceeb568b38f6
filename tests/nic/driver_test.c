/* driver_test.c: a NIC driver against the model of its device (NIC_DRIVER, NIC_MODEL), and the model against
 * drivers with one mistake each: every one must be noticed, by the complaint that belongs to it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/nic/exercise.h"

extern const struct nic_driver NIC_DRIVER;

static void passes(void **state)
{
    const struct exercise *const *e = *state;
    const char *complaint = exercise_run(*e, &NIC_MODEL, &NIC_DRIVER);
    if (complaint) fail_msg("%s", complaint);
}

static void lists_the_device(void **state)
{
    (void)state;
    for (const uint16_t *d = NIC_DRIVER.device; *d; d++)
        if (*d == NIC_MODEL.device) return;
    fail_msg("the driver does not list its device");
}

/* Everything that the model rejects, it rejects by a document that is named, or says why it is stricter. */
static void every_rule_has_a_source(void **state)
{
    static const char *const documents[] = {"r8169 ", "8169, ", "I210, ", "igc ", "igc_", "rge"};
    (void)state;
    for (uint32_t i = 0; i < NIC_MODEL.source_count; i++) {
        const struct nic_source *s = &NIC_MODEL.sources[i];
        int named = s->rule == RULE_OWN;
        if (!s->where || strlen(s->where) < 16) fail_msg("source %u is not there", i);
        for (size_t d = 0; d < sizeof documents / sizeof *documents; d++)
            named |= strncmp(s->where, documents[d], strlen(documents[d])) == 0;
        if (!named || s->rule < RULE_STATED || s->rule > RULE_OWN) fail_msg("no document: %s", s->where);
    }
}

/* In a process of its own: a mistake may do anything. Everything the exercises say of it, one line each. */
static void complaints_of(const struct mutant *m, char *out, size_t bytes)
{
    int pipe_fd[2];
    assert_int_equal(pipe(pipe_fd), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setrlimit(RLIMIT_CPU, &(struct rlimit){20, 20}); // of its own time, however busy the machine is
        close(pipe_fd[0]);
        for (uint32_t i = 0; i < exercises_count; i++) {
            const char *complaint = exercise_run(&exercises[i], &NIC_MODEL, m->driver);
            if (complaint) dprintf(pipe_fd[1], "%s: %s\n", exercises[i].name, complaint);
        }
        _exit(0);
    }
    close(pipe_fd[1]);
    size_t have = 0;
    ssize_t got;
    while (have + 1 < bytes && (got = read(pipe_fd[0], out + have, bytes - 1 - have)) > 0)
        have += (size_t)got;
    out[have] = 0;
    close(pipe_fd[0]);
    waitpid(child, NULL, 0);
}

static void is_caught(void **state)
{
    static char said[8192];
    const struct mutant *const *m = *state;
    complaints_of(*m, said, sizeof said);
    if (!strstr(said, (*m)->complaint))
        fail_msg("nobody said '%s', but:\n%s", (*m)->complaint, said[0] ? said : "nothing at all\n");
}

int main(void)
{
    enum { MOST = 96 };
    static struct CMUnitTest tests[MOST];
    static char name[MOST][64];
    static const struct exercise *exercise[MOST];
    static const struct mutant *mutant[MOST];
    uint32_t n = 0;
    for (uint32_t i = 0; i < exercises_count; i++, n++) {
        exercise[n] = &exercises[i];
        tests[n] = (struct CMUnitTest){exercises[i].name, passes, NULL, NULL, &exercise[n]};
    }
    tests[n++] = (struct CMUnitTest){"the driver lists the device", lists_the_device, NULL, NULL, NULL};
    tests[n++] = (struct CMUnitTest){"every rule has a source", every_rule_has_a_source, NULL, NULL, NULL};
    for (uint32_t i = 0; i < mutants_count && n < MOST; i++, n++) {
        snprintf(name[n], sizeof name[n], "seeded bug: %s", mutants[i].name);
        mutant[n] = &mutants[i];
        tests[n] = (struct CMUnitTest){name[n], is_caught, NULL, NULL, &mutant[n]};
    }
    return _cmocka_run_group_tests(NIC_MODEL.name, tests, n, NULL, NULL);
}
