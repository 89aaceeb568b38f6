/* nic.c: the ports: who owns the device, does it have its firmware, is its link fast and near its CPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/doctor/doctor.h"

#define BIND "dpdk-devbind.py -b vfio-pci (docs/operations.md, 2)"

/* E810 and its relatives, which ice drives: they need the package that says how to sort packets. */
static bool wants_package(const char *vendor, const char *device)
{
    unsigned long v = strtoul(vendor, NULL, 16), id = strtoul(device, NULL, 16);
    return v == 0x8086 && ((id >= 0x1591 && id <= 0x159b) || (id >= 0x1888 && id <= 0x1894) ||
                           (id >= 0x124c && id <= 0x124f) || (id >= 0x579c && id <= 0x579f));
}

static void check_package(struct doctor *d, const char *pci)
{
    static const char *const places[] = {"updates/intel/ice/ddp", "intel/ice/ddp"}, *const endings[] = {
                                                                                        "", ".zst", ".xz"};
    char name[32];
    snprintf(name, sizeof name, "ddp %s", pci);
    for (size_t i = 0; i < 2; i++)
        for (size_t k = 0; k < 3; k++) {
            if (!doctor__exists(d, "/lib/firmware/%s/ice.pkg%s", places[i], endings[k])) continue;
            if (k == 0)
                doctor__say(d, DOCTOR_OK, name, "", "/lib/firmware/%s/ice.pkg", places[i]);
            else
                doctor__say(d, DOCTOR_ADVICE, name,
                            "DPDK reads the package unpacked only if it was built with libarchive: "
                            "unpack it beside the packed one",
                            "/lib/firmware/%s/ice.pkg%s is packed", places[i], endings[k]);
            return;
        }
    doctor__say(d, DOCTOR_MISSING, name,
                "without it the device starts in safe mode, one queue and no filters: apt-get install "
                "firmware-misc-nonfree",
                "no firmware package ice.pkg below /lib/firmware/intel/ice/ddp");
}

/* The lcore of a port on the other socket costs every frame a crossing. */
static void check_numa(struct doctor *d, const struct net_port_config *p, const char *name)
{
    char node[16];
    if (!doctor__read(d, node, sizeof node, "/sys/bus/pci/devices/%s/numa_node", p->pci) || atoi(node) < 0)
        return;
    if (!doctor__exists(d, "/sys/devices/system/cpu/cpu%u", p->lcore)) return; // "isolation" says so
    if (!doctor__exists(d, "/sys/devices/system/cpu/cpu%u/node%s", p->lcore, node))
        doctor__say(d, DOCTOR_ADVICE, name, "give the port an lcore of its NIC's node",
                    "lcore %u is not on NUMA node %s, where the device is", p->lcore, node);
}

static void check_pci(struct doctor *d, const struct net_port_config *p)
{
    char name[32], driver[64] = "", vendor[16] = "", device[16] = "";
    snprintf(name, sizeof name, "nic %s", p->pci);
    if (!doctor__exists(d, "/sys/bus/pci/devices/%s", p->pci)) {
        doctor__say(d, DOCTOR_MISSING, name, "dpdk-devbind.py --status-dev net lists the devices there are",
                    "there is no such PCI device");
        return;
    }
    doctor__read(d, vendor, sizeof vendor, "/sys/bus/pci/devices/%s/vendor", p->pci);
    doctor__read(d, device, sizeof device, "/sys/bus/pci/devices/%s/device", p->pci);
    bool bound = doctor__link(d, driver, sizeof driver, "/sys/bus/pci/devices/%s/driver", p->pci);
    // Mellanox' drivers share the device with the kernel's.
    bool ours = !strcmp(driver, "vfio-pci") || !strcmp(driver, "uio_pci_generic") ||
                !strcmp(driver, "igb_uio") || !strcmp(driver, "mlx5_core");
    doctor__say(d, ours ? DOCTOR_OK : DOCTOR_MISSING, name, BIND, "%s:%s, driver %s", vendor, device,
                bound ? driver : "none");
    if (wants_package(vendor, device)) check_package(d, p->pci);
    check_numa(d, p, name);
}

/* "net_af_packet0,iface=eth1" -> eth1; false: no such device. */
static bool interface_of(const struct net_port_config *p, char out[32])
{
    const char *at = strstr(p->device, "iface=");
    return at && sscanf(at + 6, "%31[^,]", out) == 1;
}

static void check_interface(struct doctor *d, const char *interface)
{
    char name[32], state[32] = "unknown", speed[16] = "";
    snprintf(name, sizeof name, "link %.24s", interface);
    if (!doctor__exists(d, "/sys/class/net/%s", interface)) {
        doctor__say(d, DOCTOR_MISSING, name, "ip link lists the interfaces there are",
                    "there is no such interface");
        return;
    }
    doctor__read(d, state, sizeof state, "/sys/class/net/%s/operstate", interface);
    bool up = strcmp(state, "down") != 0 && strcmp(state, "lowerlayerdown") != 0;
    bool known =
        up && doctor__read(d, speed, sizeof speed, "/sys/class/net/%s/speed", interface) && atoi(speed) > 0;
    bool slow = known && atoi(speed) < 1000;
    doctor__say(d,
                !up    ? DOCTOR_MISSING
                : slow ? DOCTOR_ADVICE
                       : DOCTOR_OK,
                name,
                up ? "a step is tens of kilobytes to and from every duck: use 2.5 Gb/s or more"
                   : "ip link set up; cable, switch port",
                "%s, %s Mb/s", state, known ? speed : "unknown");
}

void doctor__nics(struct doctor *d)
{
    const struct net_config *net = d->flock ? d->flock->net : NULL;
    for (uint32_t i = 0; net && i < net->ports; i++) {
        char interface[32];
        if (*net->port[i].pci) {
            check_pci(d, &net->port[i]);
        } else if (interface_of(&net->port[i], interface)) {
            check_interface(d, interface);
        }
    }
}
