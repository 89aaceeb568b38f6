/* pci.h: PCI devices through memory-mapped configuration space (PCI Express base 5.0, 7.2.2), and the NIC
 * among them. The firmware has numbered buses and given BARs their addresses; we only read them. */
#ifndef DUCK_UEFI_PCI_H
#define DUCK_UEFI_PCI_H

#include <stdint.h>

#include "duck/nic/nic.h"
#include "duck/uefi/boot.h"
#include "duck/uefi/paging.h"

/* Maps configuration space and ends the DMA of whatever the firmware left running (a USB controller, a NIC):
 * before memory is used that is not ours alone until then. Bridges and displays are left as they are. Needs
 * the clock. Returns 0, or -1: there is no PCI; the log says why. */
int pci_start(const struct acpi *a, struct paging *paging);

/* After pci_start(). Finds the devices that a driver knows; among several the first one with a link. Maps its
 * BARs uncached, and opens it with memory from the pool (BOOT_DMA); it is bus master only once its driver has
 * reset it. `out` must stay where it is. Returns the driver; NULL: none found, or none opens; the log says
 * why. */
const struct nic_driver *pci_open_nic(struct nic *out, struct boot *boot, struct paging *paging);

/* Before the machine is switched off: lets the NIC wake it up by a magic packet. No frame goes in or out
 * after that. NULL, or why it cannot. */
const char *pci_arm_wake(void);

#endif
