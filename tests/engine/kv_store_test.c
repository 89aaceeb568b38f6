/* kv_store_test.c: KV that outlives the engine: what a restarted one reuses, and which files it refuses. On
 * the hash model, where any wrong KV entry changes every token after it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "conversation.h"

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/duckd-kv-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

/* Calls it with the path of every KV file; NULL counts them. */
static unsigned each_file(void (*visit)(const char *path))
{
    unsigned count = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[400];
        size_t n = strlen(e->d_name);
        if (n < 3 || strcmp(e->d_name + n - 3, ".kv") != 0) continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        count++;
        if (visit) visit(path);
    }
    closedir(d);
    return count;
}

static void remove_file(const char *path)
{
    assert_int_equal(unlink(path), 0);
}

static int remove_dir(void **state)
{
    (void)state;
    char lock[80];
    each_file(remove_file);
    snprintf(lock, sizeof lock, "%s/lock", dir);
    unlink(lock);
    return rmdir(dir);
}

static int try_open(struct bed *t, bool mtp, uint64_t identity, uint64_t cache, uint64_t budget,
                    struct error *err)
{
    *t = bed_open(mtp, cache);
    const struct kv_store_options store = {
        .dir = dir, .budget_bytes = budget, .backend = &t->fake->backend, .identity = identity};
    return engine__open_store(t->engine, &store, err);
}

static struct bed store_open(bool mtp, uint64_t identity)
{
    struct bed t;
    struct error err;
    if (try_open(&t, mtp, identity, 1000, 1u << 20, &err)) fail_msg("%s", err.text);
    return t;
}

static struct text told(bool mtp, uint64_t identity)
{
    struct bed b = store_open(mtp, identity);
    struct text t = {0};
    text_say(&t, 30, 1);
    assert_int_equal(text_go_on(b, &t, 9), 0);
    bed_close(b);
    assert_int_equal(each_file(NULL), 1);
    return t;
}

static void a_restarted_engine_computes_only_what_is_new(void **state)
{
    (void)state;
    for (int mtp = 0; mtp < 2; mtp++) {
        struct text t = told(mtp, 7);
        struct bed b = store_open(mtp, 7);
        uint32_t known = t.count - 1;
        text_say(&t, 5, 2);
        uint32_t cached = text_go_on(b, &t, 7);
        assert_in_range(cached, known - (mtp ? 4 : 0), known);
        bed_close(b);
        assert_int_equal(each_file(NULL), 1); // the longer text took the place of the shorter
        b = store_open(mtp, 7);
        text_say(&t, 2, 3);
        assert_true(text_go_on(b, &t, 2) > known + 5);
        bed_close(b);
        each_file(remove_file);
    }
}

static void append_byte(const char *path)
{
    FILE *f = fopen(path, "ab");
    assert_non_null(f);
    fputc('x', f);
    fclose(f);
}

static long flip_at;

static void flip(const char *path)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, flip_at, SEEK_SET), 0);
    int c = fgetc(f);
    fseek(f, flip_at, SEEK_SET);
    fputc(c ^ 1, f);
    fclose(f);
}

static void cut(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size / 2), 0);
}

static void refuses(struct text t, uint64_t identity)
{
    struct bed b = store_open(false, identity);
    text_say(&t, 3, 2);
    assert_int_equal(text_go_on(b, &t, 3), 0);
    bed_close(b);
    each_file(remove_file);
}

static void damaged_and_foreign_files_are_refused(void **state)
{
    (void)state;
    const long places[] = {0, 8, 12, 24, 40, 50, 60, 300}; // magic, header, ids, image
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct text t = told(false, 7);
        flip_at = places[i];
        each_file(flip);
        refuses(t, 7);
    }
    struct text t = told(false, 7);
    each_file(cut);
    refuses(t, 7);
    t = told(false, 7);
    each_file(append_byte);
    refuses(t, 7);
    t = told(false, 7);
    refuses(t, 8); // another model
}

/* Nobody will ever write into it; what is beside it is still read. */
static void a_fifo_is_not_waited_for(void **state)
{
    (void)state;
    char path[80];
    struct text t = told(false, 7);
    snprintf(path, sizeof path, "%s/a.kv", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(60); // ends the test
    struct bed b = store_open(false, 7);
    alarm(0);
    text_say(&t, 3, 2);
    assert_true(text_go_on(b, &t, 3) > 0);
    bed_close(b);
    each_file(remove_file);
}

static uint64_t disk_bytes;

static void add_size(const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0) disk_bytes += (uint64_t)st.st_size; // else it has just made room for another
}

static void the_budget_holds(void **state)
{
    (void)state;
    struct bed b;
    struct error err;
    // Room for three texts of 32 positions in memory, for two files: each given up conversation is saved.
    const uint64_t file = 64 + 8 + 40 * 4 + 40 * 16;
    assert_int_equal(try_open(&b, false, 7, 96, 2 * file, &err), 0);
    struct text t[6] = {0};
    for (uint32_t i = 0; i < 6; i++) {
        text_say(&t[i], 24, 10 + i);
        text_go_on(b, &t[i], 3);
        text_say(&t[i], 4, i);
        text_go_on(b, &t[i], 3); // continued: a conversation
        disk_bytes = 0;
        each_file(add_size);
        assert_true(disk_bytes <= 2 * file);
    }
    bed_close(b);
    assert_in_range(each_file(NULL), 1, 2);
    assert_int_equal(try_open(&b, false, 7, 96, 2 * file, &err), 0);
    text_say(&t[5], 4, 9);
    assert_true(text_go_on(b, &t[5], 2) > 20); // the last one used is there
    text_say(&t[0], 4, 9);
    assert_int_equal(text_go_on(b, &t[0], 2), 0); // the first one is not
    bed_close(b);
    each_file(remove_file);
}

/* What has ended is written while the engine lives, and not twice. */
static void what_ended_is_written_behind(void **state)
{
    (void)state;
    struct bed b = store_open(false, 7);
    struct text t = {0};
    text_say(&t, 24, 1);
    text_go_on(b, &t, 3);
    assert_true(engine_write_behind(b.engine) < UINT64_MAX); // not at once: it may go on
    assert_int_equal(each_file(NULL), 0);
    const struct timespec moment = {.tv_nsec = 20000000};
    unsigned looks = 0;
    while (engine_write_behind(b.engine) < UINT64_MAX && looks++ < 500) nanosleep(&moment, NULL);
    assert_int_equal(each_file(NULL), 1);
    each_file(remove_file);
    for (int i = 0; i < 3; i++) assert_true(engine_write_behind(b.engine) == UINT64_MAX);
    assert_int_equal(each_file(NULL), 0);
    bed_close(b);
}

/* Many small texts after it do not push a conversation out. */
static void side_requests_leave_conversations_their_files(void **state)
{
    (void)state;
    struct bed b;
    struct error err;
    const uint64_t file = 56 + 8 + 40 * 4 + 40 * 16;
    assert_int_equal(try_open(&b, false, 7, 1000, 3 * file, &err), 0);
    struct text told = {0};
    text_say(&told, 24, 1);
    text_go_on(b, &told, 3);
    text_say(&told, 4, 2);
    text_go_on(b, &told, 3);
    for (uint32_t i = 0; i < 8; i++) {
        struct text other = {0};
        text_say(&other, 24, 20 + i);
        text_go_on(b, &other, 3);
    }
    bed_close(b);                           // writes the least recently used first
    assert_in_range(each_file(NULL), 2, 4); // of nine
    assert_int_equal(try_open(&b, false, 7, 1000, 3 * file, &err), 0);
    text_say(&told, 4, 9);
    assert_true(text_go_on(b, &told, 2) > 20);
    bed_close(b);
    each_file(remove_file);
}

static void one_process_at_a_time(void **state)
{
    (void)state;
    struct bed a = store_open(false, 7), b;
    struct error err;
    assert_true(try_open(&b, false, 7, 100, 1000, &err) < 0);
    assert_non_null(strstr(err.text, "another duckd"));
    bed_close(b);
    bed_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_restarted_engine_computes_only_what_is_new, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(damaged_and_foreign_files_are_refused, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_fifo_is_not_waited_for, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(the_budget_holds, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(what_ended_is_written_behind, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(side_requests_leave_conversations_their_files, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(one_process_at_a_time, make_dir, remove_dir),
    };
    return cmocka_run_group_tests_name("kv-store", tests, NULL, NULL);
}
