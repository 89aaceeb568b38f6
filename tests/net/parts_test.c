// parts_test.c: the small parts of the network flock: its file, the manifest, frames.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/flock/dpdk/frame.h"
#include "host/flock/net/boot.h"
#include "host/flock/net/manifest.h"
#include "host/flock/spec.h"
#include "host/flock/transport.h"
#include "tests/fp9/fp9_random.h"

/* ---- the flock's file ---- */

#define DUCK "{\"address\": \"10.0.0.7\"}"
#define HOST(host)                                                                                           \
    "{\"transport\": \"udp\", \"host\": " host ", \"ports\": [{\"address\": \"10.0.0.1\", \"ducks\": [" DUCK \
    "]}]}"
#define UDP_PORT(ducks)                                                                                      \
    "{\"transport\": \"udp\", \"ports\": [{\"address\": \"10.0.0.1\", \"ducks\": [" ducks "]}]}"
#define TAP0 "\"address\": \"10.0.0.1/24\", \"device\": \"net_tap0,iface=x\", "
#define DPDK_PORT(port) "{\"transport\": \"dpdk\", \"ports\": [{" port "}]}"

static int parse(struct flock_spec *s, const char *json, struct error *err)
{
    return flock_spec_parse(s, json, strlen(json), "f.json", err);
}

static void network_files(void **state)
{
    (void)state;
    struct flock_spec s;
    assert_int_equal(
        parse(
            &s,
            "{\"transport\": \"udp\", \"gap_us\": 70, \"ports\": ["
            "{\"address\": \"10.0.0.1\", \"broadcast\": \"10.0.0.255\", \"ducks\": [{}, {\"name\": \"a\"}]},"
            "{\"address\": \"10.0.1.1\", \"ducks\": [{\"address\": \"10.0.1.7:99\", \"weight\": 3, "
            "\"name\": \"b\", \"mac\": \"02:00:00:0a:0B:07\"}]}]}",
            NULL),
        0);
    assert_ptr_equal(s.transport, &transport_udp);
    assert_int_equal(s.ducks, 3);
    assert_int_equal(s.net->ports, 2);
    assert_int_equal(s.net->gap_us, 70);
    assert_int_equal(s.net->port[0].broadcast, 0x0a0000ff);
    assert_true(!s.net->match[0].has_name && !s.net->match[0].address);
    assert_true(s.net->match[1].has_name && strcmp(s.net->match[1].name, "a") == 0);
    const struct net_match *m = &s.net->match[2];
    assert_true(m->port == 1 && m->address == 0x0a000107 && m->udp == 99 && m->has_mac && !m->has_name);
    assert_memory_equal(m->mac, "\x02\0\0\x0a\x0b\x07", 6);
    assert_true(s.duck[2].plan.weight == 3);
    assert_string_equal(s.duck[0].name, "udp-0");
    flock_spec_free(&s);

    assert_int_equal(
        parse(&s, DPDK_PORT("\"device\": \"net_tap0\", \"address\": \"10.0.9.1/16\", \"ducks\": [{}]"), NULL),
        0);
    assert_int_equal(s.net->port[0].broadcast, 0x0a00ffff);
    assert_int_equal(s.net->port[0].lcore, 2);
    assert_int_equal(s.net->host_udp, WIRE_HOST_PORT);
    flock_spec_free(&s);
}

/* Who is served what: known ducks their own address, others of a port a bounded pool or nothing. */
static void boot_service(void **state)
{
    (void)state;
    struct flock_spec s;
    struct error err = {""};
    char text[4096] = "", path[] = "/tmp/duckd-key-XXXXXX", json[1024];
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "00112233445566778899aabbccddeeff\n", 33), 33);
    close(fd);
    snprintf(
        json, sizeof json,
        "{\"transport\": \"dpdk\", \"boot\": true, \"key_file\": \"%s\", \"state_dir\": \"/var/x\", "
        "\"ports\": ["
        "{\"device\": \"net_a\", \"address\": \"10.0.1.1/24\", \"ducks\": [{\"mac\": \"02:00:00:0a:0b:07\", "
        "\"address\": \"10.0.1.7\"}, {\"mac\": \"02:00:00:0a:0b:08\"}]},"
        "{\"device\": \"net_b\", \"address\": \"10.0.2.1/24\", \"ducks\": [{\"address\": \"10.0.2.9\"}, {}]},"
        "{\"device\": \"net_c\", \"address\": \"10.1.0.1/16\", \"ducks\": [{}, {}, {}]}]}",
        path);
    assert_int_equal(parse(&s, json, &err), 0);
    assert_true(s.net->port[0].exception_tap && s.net->port[2].exception_tap);
    assert_string_equal(s.net->key_text, "00112233445566778899aabbccddeeff");
    FILE *f = fmemopen(text, sizeof text, "w");
    net_boot_write(s.net, f);
    fclose(f);
    assert_non_null(strstr(text,
                           "interface=duckd0\ndhcp-range=10.0.1.0,static,255.255.255.0,1h\n"
                           "dhcp-host=02:00:00:0a:0b:07,10.0.1.7\ndhcp-host=02:00:00:0a:0b:08,10.0.1.100\n"));
    assert_non_null(strstr(text, "interface=duckd1\ndhcp-range=10.0.2.9,10.0.2.10,255.255.255.0,1h\n"));
    assert_non_null(strstr(text, "interface=duckd2\ndhcp-range=10.1.0.100,10.1.0.102,255.255.0.0,1h\n"));
    assert_non_null(strstr(text, "tftp-root=/var/x/boot/tftp\ntftp-unique-root=mac\n"));
    assert_null(strstr(text, "00112233")); // the key is in duck.conf only
    flock_spec_free(&s);
    unlink(path);
    assert_int_equal(parse(&s, "{\"transport\": \"dpdk\", \"boot\": true, \"ports\": []}", &err), -EINVAL);
    assert_non_null(strstr(err.text, "boot needs a key_file"));
}

/* Paths in a flock's file do not depend on where duckd is started; /etc/duckd is not where that is. */
static void paths_lie_beside_the_file(void **state)
{
    (void)state;
    static const struct {
        const char *file, *written, *read;
    } cases[] = {
        {"f.json", "k", "k"},
        {"./f.json", "k", "./k"},
        {"/nowhere/f.json", "k", "/nowhere/k"},
        {"/nowhere/f.json", "../k", "/nowhere/../k"},
        {"/nowhere/f.json", "/elsewhere/k", "/elsewhere/k"},
        {"/f.json", "k", "/k"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        struct net_config c;
        struct error err = {""};
        snprintf(text, sizeof text,
                 "{\"transport\": \"udp\", \"state_dir\": \"%s\", \"program\": \"%s\", \"ports\": ["
                 "{\"address\": \"127.0.0.1\", \"ducks\": [{\"address\": \"127.0.0.2\"}]}]}",
                 cases[i].written, cases[i].written);
        cJSON *root = cJSON_Parse(text);
        if (net_config_read(&c, root, false, cases[i].file, &err)) fail_msg("%s", err.text);
        assert_string_equal(c.program, cases[i].read);
        snprintf(text, sizeof text, "%s/plan", cases[i].read);
        assert_string_equal(c.plans, text);
        net_config_free(&c);
        cJSON_Delete(root);
    }
}

static void reference_file(void **state)
{
    (void)state;
    struct flock_spec s;
    struct error err = {""};
    // Its key is made on the machine; everything else is as it will be read there.
    FILE *f = fopen("configs/flock-32.json", "r");
    assert_non_null(f);
    static char text[16384];
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    char *key = strstr(text, "\"key_file\": \"flock.key\",");
    assert_non_null(key);
    memset(key, ' ', strlen("\"key_file\": \"flock.key\","));
    if (parse(&s, text, &err)) fail_msg("%s", err.text);
    assert_int_equal(s.net->ports, 4);
    assert_int_equal(s.ducks, 32);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(s.net->port[i].lcore, 2 * i + 2);
        assert_int_equal(s.net->port[i].address, 0x0a150101 + (i << 8));
        for (uint32_t k = 0; k < 8; k++) {
            assert_int_equal(s.net->match[8 * i + k].address, 0x0a150165 + (i << 8) + k);
            assert_int_equal(s.net->match[8 * i + k].port, i);
        }
    }
    flock_spec_free(&s);
}

static void bad_files(void **state)
{
    (void)state;
    static const struct {
        const char *json, *message;
    } bad[] = {
        {"{\"transport\": \"udp\"}", "f.json: ports must be a list of 1 .. 16 ports, it has 0"},
        {"{\"transport\": \"udp\", \"port\": []}", "f.json: unknown key 'port'"},
        {UDP_PORT(""), "f.json: port 0: ducks must be a list of ducks, 1 .. 256 in the whole flock"},
        {UDP_PORT("{}"),
         "f.json: port 0: duck 0: address is missing (without a broadcast address on the port)"},
        {UDP_PORT("3"), "f.json: port 0: duck 0 is 3, it must be an object"},
        {UDP_PORT("{\"adress\": \"10.0.0.7\"}"), "f.json: port 0: duck 0: unknown key 'adress'"},
        {UDP_PORT("{\"address\": \"10.0.0.256\"}"),
         "f.json: port 0: duck 0: address is \"10.0.0.256\", it must look like \"10.21.1.101\""},
        {UDP_PORT("{\"address\": \"10.0.0.7:\"}"), "f.json: port 0: duck 0: address is"},
        {UDP_PORT("{\"address\": \"10.0.0.7:70000\"}"), "f.json: port 0: duck 0: address is"},
        {UDP_PORT("{\"address\": \"10.0.0.7\", \"mac\": \"02:00\"}"),
         "f.json: port 0: duck 0: mac is \"02:00\", it must look like \"02:00:00:00:01:05\""},
        {UDP_PORT("{\"address\": \"10.0.0.7\", \"weight\": -1}"),
         "f.json: duck 0: weight is -1, it must be a positive"},
        {"{\"transport\": \"udp\", \"ports\": [{\"ducks\": [" DUCK "]}]}",
         "f.json: port 0: address is missing: this host's own on the port"},
        {HOST("{}"), "f.json: host: memory_gb is missing, it must be a number 0.01 .. 1000000"},
        {HOST("{\"memory_gb\": 1e7}"),
         "f.json: host: memory_gb is 10000000, it must be a number 0.01 .. 1000000"},
        {HOST("{\"memory_gb\": 1, \"core\": 2}"), "f.json: host: unknown key 'core'"},
        {HOST("{\"memory_gb\": 1, \"cores\": 65}"),
         "f.json: host: cores is 65, it must be a whole number 1 .. 64"},
        {HOST("7"), "f.json: host is 7, it must be an object"},
        {"{\"transport\": \"udp\", \"payload\": 100, \"ports\": []}",
         "f.json: payload is 100, it must be a whole number 512 .. 8928"},
        {"{\"transport\": \"udp\", \"key_file\": \"/nonexistent\", \"ports\": []}",
         "f.json: key_file /nonexistent: No such file or directory"},
        {"{\"transport\": \"udp\", \"key_file\": \"CMakeLists.txt\", \"ports\": []}",
         "f.json: key_file CMakeLists.txt "},
        {DPDK_PORT("\"address\": \"10.0.0.1/24\", \"ducks\": [{}]"),
         "f.json: port 0 needs either \"device\" (a DPDK virtual device) or \"pci\""},
        {DPDK_PORT("\"address\": \"10.0.0.1/33\", \"pci\": \"0000:01:00.0\", \"ducks\": [{}]"),
         "f.json: port 0: address is \"10.0.0.1/33\", it must look like \"10.21.1.1/24\""},
        {UDP_PORT(DUCK ", " DUCK), "f.json: ducks 0 and 1 have the same address, 10.0.0.7"},
        {UDP_PORT("{\"address\": \"10.0.0.7\", \"mac\": \"02:00:00:00:01:05\"}, "
                  "{\"address\": \"10.0.0.8\", \"mac\": \"02:00:00:00:01:05\"}"),
         "f.json: ducks 0 and 1 have the same mac, 02:00:00:00:01:05"},
        {UDP_PORT("{\"address\": \"10.0.0.7\", \"mac\": \"ff:ff:ff:ff:ff:ff\"}"),
         "f.json: duck 0: ff:ff:ff:ff:ff:ff is no duck's mac but that of a group"},
        {DPDK_PORT(TAP0 "\"ducks\": [{\"address\": \"10.0.1.7\"}]"),
         "f.json: duck 0: 10.0.1.7 is not in the network of its port, 10.0.0.1/24"},
        {DPDK_PORT(TAP0 "\"ducks\": [{\"address\": \"10.0.0.1\"}]"),
         "f.json: duck 0 has the address of its port, 10.0.0.1"},
        {DPDK_PORT(TAP0 "\"ducks\": [{}]}, {" TAP0 "\"ducks\": [{}]"),
         "f.json: ports 0 and 1 have the same device, net_tap0"},
        {DPDK_PORT("\"address\": \"10.0.0.1/24\", \"pci\": \"0000:01:00.0\", \"ducks\": [{}]}, "
                   "{\"address\": \"10.0.1.1/24\", \"pci\": \"0000:01:00.0\", \"ducks\": [{}]"),
         "f.json: ports 0 and 1 have the same device, 0000:01:00.0"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct flock_spec s;
        struct error err = {""};
        assert_true(parse(&s, bad[i].json, &err) < 0);
        if (strncmp(err.text, bad[i].message, strlen(bad[i].message)) != 0)
            fail_msg("case %zu: got '%s', want '%s'", i, err.text, bad[i].message);
        assert_null(s.duck);
        assert_null(s.net);
    }
}

/* ---- the manifest ---- */

static void manifest_remembers(void **state)
{
    (void)state;
    char path[] = "/tmp/duckd-manifest-XXXXXX";
    close(mkstemp(path));
    struct manifest m = {0}, again;
    manifest_read(&again, path); // an empty file is an empty manifest
    assert_int_equal(again.used, 0);
    assert_int_equal(manifest_get(&again, 5), 0);
    uint64_t seed = 1;
    for (int i = 0; i < 5000; i++) {
        uint64_t key = random_next(&seed) | 1;
        assert_int_equal(manifest_put(&m, key, key ^ 77), 0);
    }
    assert_int_equal(manifest_put(&m, 42, 1), 0);
    assert_int_equal(manifest_put(&m, 42, 2), 0);
    assert_true(m.changed);
    assert_int_equal(manifest_write(&m, path, NULL), 0);
    manifest_read(&again, path);
    assert_int_equal(again.used, 5001);
    assert_false(again.changed);
    seed = 1;
    for (int i = 0; i < 5000; i++) {
        uint64_t key = random_next(&seed) | 1;
        assert_int_equal(manifest_get(&again, key), key ^ 77);
    }
    assert_int_equal(manifest_get(&again, 42), 2);
    manifest_put(&again, 42, 2);
    assert_false(again.changed);
    manifest_free(&again);

    FILE *f = fopen(path, "r+"); // one bit is wrong: nothing of it is believed
    assert_non_null(f);
    fseek(f, 1000, SEEK_SET);
    int c = fgetc(f);
    fseek(f, 1000, SEEK_SET);
    fputc(c ^ 1, f);
    fclose(f);
    manifest_read(&again, path);
    assert_int_equal(again.used, 0);
    assert_int_equal(truncate(path, 500), 0);
    manifest_read(&again, path);
    assert_int_equal(again.used, 0);
    unlink(path);
    struct error err;
    assert_true(manifest_write(&m, "/nonexistent/x", &err) < 0);
    assert_string_equal(err.text, "/nonexistent/x cannot be written: No such file or directory");
    manifest_free(&m);
}

/* ---- frames ---- */

static const struct frame_self host = {{2, 0, 0, 0, 0, 1}, WIRE_HOST_PORT, 0x0a150101, 0x0a1501ff};
static const struct frame_self duck = {{2, 0, 0, 0, 1, 5}, WIRE_DUCK_PORT, 0x0a150165, 0x0a1501ff};

static void frames_there_and_back(void **state)
{
    (void)state;
    uint8_t frame[256] = {0};
    memcpy(frame + FRAME_HEADERS, "hello, duck", 11);
    struct net_peer to = {.address = duck.address, .port = duck.udp}, from;
    memcpy(to.mac, duck.mac, 6);
    assert_int_equal(frame_write(&host, &to, frame, 11), FRAME_HEADERS + 11);
    const uint8_t *payload;
    size_t length;
    // Padding to Ethernet's minimum must not become part of the payload.
    assert_int_equal(frame_read(&duck, frame, 60, &from, &payload, &length), FRAME_OURS);
    assert_int_equal(length, 11);
    assert_memory_equal(payload, "hello, duck", 11);
    assert_true(from.address == host.address && from.port == host.udp);
    assert_memory_equal(from.mac, host.mac, 6);
    assert_int_equal(frame_read(&host, frame, 60, &from, &payload, &length), FRAME_OTHER);
    for (size_t bytes = 0; bytes < FRAME_HEADERS + 11; bytes++)
        assert_int_equal(frame_read(&duck, frame, bytes, &from, &payload, &length), FRAME_OTHER);
    frame[24] ^= 1; // the IP header's checksum
    assert_int_equal(frame_read(&duck, frame, 60, &from, &payload, &length), FRAME_OTHER);

    frame_write(&host, NULL, frame, 11);
    assert_memory_equal(frame, "\xff\xff\xff\xff\xff\xff", 6);
    assert_memory_equal(frame + 30, "\x0a\x15\x01\xff", 4);
}

static void arp(void **state)
{
    (void)state;
    uint8_t request[60] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 1,  5,  8, 6,
                           0,    1,    8,    0,    6,    4,    0, 1, 2, 0, 0,  0,  1, 5,
                           10,   21,   1,    101,  0,    0,    0, 0, 0, 0, 10, 21, 1, 1};
    struct net_peer from;
    const uint8_t *payload;
    size_t length;
    assert_int_equal(frame_read(&host, request, sizeof request, &from, &payload, &length), FRAME_ASKS);
    assert_int_equal(frame_read(&duck, request, sizeof request, &from, &payload, &length), FRAME_OTHER);
    assert_int_equal(frame_read(&host, request, 41, &from, &payload, &length), FRAME_OTHER);
    uint8_t answer[FRAME_ARP];
    frame_answer_arp(&host, request, answer);
    static const uint8_t expected[FRAME_ARP] = {2,  0,  0, 0, 1, 5, 2, 0, 0, 0, 0,  1,  8, 6,
                                                0,  1,  8, 0, 6, 4, 0, 2, 2, 0, 0,  0,  0, 1,
                                                10, 21, 1, 1, 2, 0, 0, 0, 1, 5, 10, 21, 1, 101};
    assert_memory_equal(answer, expected, sizeof expected);
}

static void random_frames(void **state)
{
    (void)state;
    uint64_t seed = 3;
    uint8_t frame[128] = {0};
    struct net_peer to = {.address = duck.address, .port = duck.udp}, from;
    for (int i = 0; i < 200000; i++) {
        size_t bytes = random_below(&seed, sizeof frame + 1), length = 0;
        if (i % 2) {
            frame_write(&host, &to, frame, 40);
            frame[random_below(&seed, 60)] = (uint8_t)random_next(&seed);
        } else {
            for (size_t k = 0; k < bytes; k++) frame[k] = (uint8_t)random_next(&seed);
        }
        const uint8_t *payload;
        if (frame_read(&duck, frame, bytes, &from, &payload, &length) == FRAME_OURS)
            assert_true(payload >= frame && payload + length <= frame + bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(network_files),
        cmocka_unit_test(boot_service),
        cmocka_unit_test(paths_lie_beside_the_file),
        cmocka_unit_test(reference_file),
        cmocka_unit_test(bad_files),
        cmocka_unit_test(manifest_remembers),
        cmocka_unit_test(frames_there_and_back),
        cmocka_unit_test(arp),
        cmocka_unit_test(random_frames),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
