/* silence.c: why a duck does not answer: it did not wake, it woke and booted something else, it booted and
 * did not start, it started and is not heard. Told from its frames and from what the boot service has served
 * it.
 */
#include <stdarg.h>
#include <stdio.h>

#include "host/doctor/doctor.h"

__attribute__((format(printf, 2, 3))) static struct doctor_silence say(const char *advice, const char *format,
                                                                       ...)
{
    struct doctor_silence s = {.advice = advice};
    va_list ap;
    va_start(ap, format);
    vsnprintf(s.found, sizeof s.found, format, ap);
    va_end(ap);
    return s;
}

struct doctor_silence doctor_silence(const struct net_status *s)
{
    const struct net_boot_history *b = &s->boot;
    if (s->port_down) return say("the port's cable and switch", "its port %u has no link", s->port);
    if (!s->serves || !s->has_mac)
        return say("power, cable, switch port, its key; duckd flock boot wakes it", "does not answer");
    switch (b->stage) {
    case NET_BOOT_SILENT:
        if (s->other_frames)
            return say("network boot (PXE, IPv4) first in its BIOS",
                       "is awake (%u frames), and has not asked for an address", s->other_frames);
        return say("power, cable; wake on LAN in its BIOS; its MAC address in the flock's file",
                   "has not woken: not a frame from it");
    case NET_BOOT_OTHER:
        return say("network boot (PXE, IPv4) before disks in its BIOS",
                   "is awake, and has booted something else than PXE (it calls itself '%s')", b->class);
    case NET_BOOT_LEGACY:
        return say("UEFI boot in its BIOS, no CSM", "boots as a BIOS does, not UEFI ('%s')", b->class);
    case NET_BOOT_ASKED:
        return say("another DHCP server on this port; the log of dnsmasq says more",
                   "PXE has asked for an address and taken none");
    case NET_BOOT_ADDRESS:
        return say("cable, switch; the log of dnsmasq says more",
                   "PXE has an address and has not fetched the image (TFTP failed %u time%s)", b->failures,
                   b->failures == 1 ? "" : "s");
    case NET_BOOT_IMAGE:
        return say("Secure Boot off in its BIOS; its screen", "has fetched the image and not started it");
    case NET_BOOT_STARTED:
        break;
    }
    return say("its screen says what is wrong: NIC, memory, cores",
               "has started the image and fetched its key, and does not answer");
}
