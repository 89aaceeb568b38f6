// doctor_test.c: `duckd doctor` on made-up machines: one where everything is right, and what it says of each
// thing that is not.
#include "tests/cli/support.h"

#include <stdbool.h>
#include <string.h>

#define PCI "0000:81:00.0"

static const char machine[] =
    "rm -rf m && mkdir -p m/proc/self m/sys/kernel/iommu_groups/0 m/sys/kernel/iommu_groups/1"
    " m/sys/bus/pci/drivers/vfio-pci m/sys/devices/system/cpu m/sys/bus/pci/devices/" PCI
    " m/lib/firmware/intel/ice/ddp m/sys/class/net/eth7 && cd m &&"
    " echo 'flags : fpu fma avx2 f16c avx512f' > proc/cpuinfo &&"
    " printf 'HugePages_Total:       4\\nHugePages_Free:        4\\nHugepagesize:    1048576 kB\\n' > "
    "proc/meminfo &&"
    " echo 'BOOT_IMAGE=/vmlinuz intel_iommu=on iommu=pt quiet' > proc/cmdline &&"
    " echo 'Max locked memory         unlimited            unlimited            bytes' > proc/self/limits &&"
    " for c in 0 2 4; do mkdir -p sys/devices/system/cpu/cpu$c/cpufreq sys/devices/system/cpu/cpu$c/node1;"
    " echo performance > sys/devices/system/cpu/cpu$c/cpufreq/scaling_governor; done &&"
    " echo 2,4-5 > sys/devices/system/cpu/isolated && cd sys/bus/pci/devices/" PCI " &&"
    " echo 0x8086 > vendor && echo 0x1593 > device && echo 1 > numa_node && ln -s ../../drivers/vfio-pci "
    "driver &&"
    " cd ../../../../.. && touch lib/firmware/intel/ice/ddp/ice.pkg &&"
    " echo up > sys/class/net/eth7/operstate && echo 25000 > sys/class/net/eth7/speed && cd .. &&";

static const char flock[] =
    "{\"transport\": \"dpdk\", \"huge_pages\": true, \"ports\": ["
    "{\"pci\": \"" PCI "\", \"lcore\": 2, \"address\": \"10.0.0.1/24\", \"ducks\": [{}]},"
    "{\"device\": \"net_af_packet0,iface=eth7\", \"lcore\": 4, \"address\": \"10.0.1.1/24\","
    " \"ducks\": [{\"name\": \"other\"}]}]}";

static const struct {
    const char *change, *check, *verdict, *says;
} cases[] = {
    {"echo 'flags : fpu fma avx256 f16c' > m/proc/cpuinfo", "cpu", "missing", "no avx2"},
    {"rm m/proc/cpuinfo", "cpu", "missing", "cannot be read"},
    {"sed -i 's/Free:.*4/Free: 0/' m/proc/meminfo", "hugepages", "missing", "0 of 4 free"},
    {"rm -r m/sys/kernel/iommu_groups", "iommu", "missing", "no IOMMU groups"},
    {"echo quiet > m/proc/cmdline", "iommu", "advice", "2 groups"},
    {"rm -r m/sys/bus/pci/drivers/vfio-pci", "vfio", "missing", "not loaded"},
    {"sed -i s/unlimited/65536/g m/proc/self/limits", "memlock", "missing",
     "64 kB may be locked, 262144 kB wanted"},
    {"echo 2 > m/sys/devices/system/cpu/isolated", "isolation", "advice", "not so lcores 4"},
    {"echo powersave > m/sys/devices/system/cpu/cpu4/cpufreq/scaling_governor", "governor", "advice",
     "not performance: CPU 4"},
    {"rm -r m/sys/bus/pci/devices/" PCI, "nic " PCI, "missing", "no such PCI device"},
    {"ln -sfn ../../drivers/ice m/sys/bus/pci/devices/" PCI "/driver", "nic " PCI, "missing",
     "0x8086:0x1593, driver ice"},
    {"rm m/sys/bus/pci/devices/" PCI "/driver", "nic " PCI, "missing", "driver none"},
    {"echo 0 > m/sys/bus/pci/devices/" PCI "/numa_node", "nic " PCI, "advice",
     "lcore 2 is not on NUMA node 0"},
    {"rm m/lib/firmware/intel/ice/ddp/ice.pkg", "ddp " PCI, "missing", "no firmware package"},
    {"mv m/lib/firmware/intel/ice/ddp/ice.pkg m/lib/firmware/intel/ice/ddp/ice.pkg.xz", "ddp " PCI, "advice",
     "packed"},
    {"echo down > m/sys/class/net/eth7/operstate", "link eth7", "missing", "down"},
    {"echo 100 > m/sys/class/net/eth7/speed", "link eth7", "advice", "100 Mb/s"},
    {"rm -r m/sys/class/net/eth7", "link eth7", "missing", "no such interface"},
};

static void all_is_well(void **state)
{
    (void)state;
    write_scratch("flock", flock);
    struct outcome o = run("%s $D doctor --root m --flock flock --json", machine);
    assert_int_equal(o.status, 0);
    cJSON *list = json_of(&o), *item;
    assert_int_equal(cJSON_GetArraySize(list), 10);
    cJSON_ArrayForEach(item, list)
    {
        assert_string_equal(cJSON_GetObjectItem(item, "verdict")->valuestring, "ok");
        assert_string_equal(cJSON_GetObjectItem(item, "advice")->valuestring, "");
    }
    cJSON_Delete(list);
    outcome_free(&o);
}

static void each_fault_is_named(void **state)
{
    (void)state;
    write_scratch("flock", flock);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct outcome o = run("%s %s && $D doctor --root m --flock flock --json", machine, cases[i].change);
        bool missing = strcmp(cases[i].verdict, "missing") == 0, found = false;
        if (o.status != missing) fail_msg("%s: status %d: %s%s", cases[i].change, o.status, o.out, o.err);
        cJSON *list = json_of(&o), *item;
        cJSON_ArrayForEach(item, list)
        {
            const char *verdict = cJSON_GetObjectItem(item, "verdict")->valuestring;
            if (strcmp(verdict, "ok") == 0) continue;
            assert_false(found); // nothing else is wrong
            found = true;
            assert_string_equal(cJSON_GetObjectItem(item, "check")->valuestring, cases[i].check);
            assert_string_equal(verdict, cases[i].verdict);
            const char *says = cJSON_GetObjectItem(item, "found")->valuestring;
            if (!strstr(says, cases[i].says)) fail_msg("%s: %s", cases[i].change, says);
            assert_true(strlen(cJSON_GetObjectItem(item, "advice")->valuestring) > 10);
        }
        assert_true(found);
        cJSON_Delete(list);
        outcome_free(&o);
    }
}

/* Without a flock, and for a flock behind UDP sockets, a machine needs nothing but its CPU. */
static void little_is_needed_without_devices(void **state)
{
    (void)state;
    write_scratch("udp", "{\"transport\": \"udp\", \"ports\": [{\"address\": \"127.0.0.1\", \"ducks\": "
                         "[{\"address\": \"127.0.0.2\"}]}]}");
    struct outcome o = run("%s rm -r m/sys m/lib && $D doctor --root m", machine);
    assert_int_equal(o.status, 0);
    assert_non_null(strstr(o.out, "advice   iommu"));
    assert_null(strstr(o.out, "MISSING"));
    outcome_free(&o);
    o = run("%s rm -r m/sys m/lib && $D doctor --root m --flock udp", machine);
    assert_int_equal(o.status, 0);
    assert_non_null(strstr(o.out, "ok       cpu"));
    assert_null(strstr(o.out, "advice")); // of what it would make no use of
    assert_null(strstr(o.out, "MISSING"));
    outcome_free(&o);
    o = run("%s rm -r m/sys m/lib && $D doctor --root m --flock flock", machine);
    assert_int_equal(o.status, 1);
    assert_non_null(strstr(o.out, "MISSING  iommu"));
    assert_non_null(strstr(o.err, "things are missing"));
    outcome_free(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_is_well),
        cmocka_unit_test(each_fault_is_named),
        cmocka_unit_test(little_is_needed_without_devices),
    };
    return cmocka_run_group_tests(tests, NULL, remove_scratch);
}
