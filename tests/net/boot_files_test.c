/* boot_files_test.c: what the daemon puts where a duck fetches it, read as the firmware reads it: each MAC
 * address finds the flock's key and its own static address, and others nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "duck/uefi/options.h"
#include "host/flock/net/boot.h"

static char folder[] = "/tmp/duckd-boot-XXXXXX";

static const struct net_match matches[] = {
    {.port = 0, .has_mac = true, .mac = {2, 0, 0, 0, 0, 1}, .address = 0x0a150065},
    {.port = 0, .has_mac = true, .mac = {2, 0, 0, 0, 0, 2}}, // the first that nobody has
    {.port = 1, .has_mac = true, .mac = {2, 0, 0, 0, 0, 3}, .address = 0x0a160007},
    {.port = 1},
};
static struct net_match match[4];
static struct net_config config;

static void make(void)
{
    memcpy(match, matches, sizeof match);
    config = (struct net_config){.ports = 2, .wires = 2, .match = match, .ducks = 4};
    config.port[0].address = 0x0a150001, config.port[1].address = 0x0a160001;
    config.port[0].prefix = config.port[1].prefix = 24;
    strcpy(config.key_text, "00112233445566778899aabbccddeeff");
    strcpy(config.boot_image, "/nowhere/BOOTX64.EFI");
    snprintf(config.boot_dir, sizeof config.boot_dir, "%s/state/boot", folder);
}

static int start(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    char line[64];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return system(line);
}

/* duck.conf of tftp/WHO; false: there is none. */
static bool fetch(const char *who, struct options *o)
{
    char path[256], text[1024] = "", image[64] = "";
    snprintf(path, sizeof path, "%s/state/boot/tftp/%s/duck.conf", folder, who);
    FILE *f = fopen(path, "r");
    if (!f) return false;
    assert_true(fread(text, 1, sizeof text - 1, f) > 0);
    fclose(f);
    options_read(o, text);
    assert_string_equal(o->bad, "");
    assert_true(o->has_key);
    for (unsigned i = 0; i < 16; i++) assert_int_equal(o->key[i], 0x11 * i);
    snprintf(path, sizeof path, "%s/state/boot/tftp/%s/BOOTX64.EFI", folder, who);
    assert_true(readlink(path, image, sizeof image - 1) > 0);
    assert_string_equal(image, config.boot_image);
    return true;
}

static void each_mac_address_has_its_own(void **state)
{
    (void)state;
    struct error err = {""};
    struct options o;
    make();
    assert_int_equal(net_boot_fill(&config, &err), 0);
    assert_true(fetch("02-00-00-00-00-01", &o));
    assert_int_equal(o.address, 0x0a150065);
    assert_true(fetch("02-00-00-00-00-02", &o));
    assert_int_equal(o.address, 0x0a150064);
    assert_true(fetch("02-00-00-00-00-03", &o));
    assert_int_equal(o.address, 0x0a160007);
    assert_true(fetch(".", &o)); // the one without: asks by DHCP
    assert_int_equal(o.address, 0);
}

static void nobody_else_finds_a_key(void **state)
{
    (void)state;
    struct error err = {""};
    struct options o;
    struct stat about;
    make();
    assert_int_equal(net_boot_fill(&config, &err), 0);
    assert_int_equal(stat(config.boot_dir, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0700);
    config.ducks = 1; // the others are no longer in the flock's file
    assert_int_equal(net_boot_fill(&config, &err), 0);
    assert_true(fetch("02-00-00-00-00-01", &o));
    assert_false(fetch("02-00-00-00-00-02", &o));
    assert_false(fetch("02-00-00-00-00-03", &o));
    assert_false(fetch(".", &o));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_mac_address_has_its_own),
        cmocka_unit_test(nobody_else_finds_a_key),
    };
    return cmocka_run_group_tests(tests, start, end);
}
