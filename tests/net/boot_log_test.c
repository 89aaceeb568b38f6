/* boot_log_test.c: how far each machine has come in booting, from lines as dnsmasq 2.90 writes them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "host/flock/net/boot_log.h"

enum { DUCKS = 10 };
#define DATE "Nov 30 06:11:00 "
#define PXE(number) DATE "dnsmasq-dhcp[7]: " number " vendor class: PXEClient:Arch:00007:UNDI:003000\n"
#define ASKS(number, mac) DATE "dnsmasq-dhcp[7]: " number " DHCPDISCOVER(duckd0) 02:00:00:00:00:0" mac " \n"
#define GETS(number, mac)                                                                                    \
    PXE(number)                                                                                              \
    DATE "dnsmasq-dhcp[7]: " number " DHCPACK(duckd0) 10.21.0.10" mac " 02:00:00:00:00:0" mac " \n"
#define BOOTS(number, mac) PXE(number) ASKS(number, mac) GETS(number, mac)
#define SENT(mac, file)                                                                                      \
    DATE "dnsmasq-tftp[7]: sent /x/tftp/02-00-00-00-00-0" mac "/" file " to 10.21.0.10" mac "\n"

static struct net_config config;
static struct net_match match[DUCKS];

static void read_log(const char *text, struct net_boot_history out[DUCKS])
{
    config.ducks = DUCKS;
    config.match = match;
    for (uint8_t i = 0; i < DUCKS; i++)
        match[i] = (struct net_match){.has_mac = i != 7, .mac = {2, 0, 0, 0, 0, i}};
    FILE *f = fmemopen((void *)(uintptr_t)text, strlen(text), "r");
    assert_non_null(f);
    net_boot_read_log(&config, f, out);
    fclose(f);
}

static void each_stage_is_told(void **state)
{
    static const char log[] = DATE "dnsmasq[7]: started, version 2.90 DNS disabled\n" DATE
                                   "dnsmasq-tftp[7]: TFTP root is /x/tftp  \n" DATE
                                   "dnsmasq-dhcp[7]: 11 vendor class: MSFT 5.0\n" ASKS("11", "1") DATE
        "dnsmasq-dhcp[7]: 12 vendor class: PXEClient:Arch:00000:UNDI:002001\n" ASKS("12", "2") PXE("13")
            ASKS("13", "3") BOOTS("14", "4") BOOTS("15", "5") SENT("5", "BOOTX64.EFI") BOOTS("16", "6")
                SENT("6", "BOOTX64.EFI") SENT("6", "duck.conf") BOOTS("17", "7")
                    SENT("7", "BOOTX64.EFI") // is not told apart
        ASKS("18", "8")                      // nobody knows as what
        BOOTS("19", "9") DATE
        "dnsmasq-tftp[7]: failed sending /x/tftp/02-00-00-00-00-09/BOOTX64.EFI to 10.21.0.109\n" DATE
        "dnsmasq-tftp[7]: file /x/tftp/duck.conf not found for 10.21.0.109\n"
        "line without an end \x01\xff dnsmasq-dhcp[";
    struct net_boot_history h[DUCKS];
    (void)state;
    read_log(log, h);
    static const enum net_boot_stage must[DUCKS] = {
        NET_BOOT_SILENT, NET_BOOT_OTHER,   NET_BOOT_LEGACY, NET_BOOT_ASKED, NET_BOOT_ADDRESS,
        NET_BOOT_IMAGE,  NET_BOOT_STARTED, NET_BOOT_SILENT, NET_BOOT_OTHER, NET_BOOT_ADDRESS};
    for (uint32_t i = 0; i < DUCKS; i++)
        if (h[i].stage != must[i])
            fail_msg("duck %u: stage %d, must be %d", i, (int)h[i].stage, (int)must[i]);
    assert_string_equal(h[1].class, "MSFT 5.0");
    assert_int_equal(h[6].starts, 1);
    assert_int_equal(h[6].failures, 0);
    assert_int_equal(h[9].failures, 2);
}

/* The last start counts, and how many there were. */
static void a_start_begins_anew(void **state)
{
    static const char once[] = BOOTS("1", "4") SENT("4", "BOOTX64.EFI") SENT("4", "duck.conf");
    static const char twice[] =
        BOOTS("1", "4") SENT("4", "BOOTX64.EFI") SENT("4", "duck.conf") BOOTS("2", "4");
    static const char windows[] = BOOTS("1", "4") SENT("4", "BOOTX64.EFI") DATE
        "dnsmasq-dhcp[7]: 3 vendor class: MSFT 5.0\n" ASKS("3", "4");
    struct net_boot_history h[DUCKS];
    (void)state;
    read_log(once, h);
    assert_int_equal(h[4].stage, NET_BOOT_STARTED);
    read_log(twice, h);
    assert_int_equal(h[4].stage, NET_BOOT_ADDRESS);
    assert_int_equal(h[4].starts, 2);
    read_log(windows, h);
    assert_int_equal(h[4].stage, NET_BOOT_OTHER);
    assert_int_equal(h[4].starts, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_stage_is_told),
        cmocka_unit_test(a_start_begins_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
