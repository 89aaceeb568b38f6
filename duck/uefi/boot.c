/* boot.c: the UEFI application: asks the firmware for what we need, then takes the machine over.
 * The only file that knows UEFI. */
#include <efi.h>

#include "duck/uefi/boot.h"
#include "duck/uefi/console.h"
#include "duck/uefi/print.h"
#include "duck/uefi/screen.h"

#include <string.h>

EFI_STATUS efi_main(EFI_HANDLE image, EFI_SYSTEM_TABLE *st);
void stack_switch(void *top, void (*f)(void *), void *argument);

static EFI_SYSTEM_TABLE *system_table;
static EFI_BOOT_SERVICES *services;
static struct boot boot;

void *boot_pool_take(struct boot_pool *p, size_t bytes)
{
    bytes = (bytes + 4095) / 4096 * 4096;
    if (bytes > p->bytes - p->used) return NULL;
    void *piece = p->memory + p->used;
    p->used += bytes;
    memset(piece, 0, bytes);
    return piece;
}

/* On the firmware's console and on the serial line. */
static void tell(const char *line)
{
    CHAR16 wide[128];
    size_t n = 0;
    for (; line[n] && n < 125; n++) wide[n] = (CHAR16)line[n];
    wide[n++] = '\r';
    wide[n++] = '\n';
    wide[n] = 0;
    if (system_table->ConOut) system_table->ConOut->OutputString(system_table->ConOut, wide);
    say("%s", line);
}

static void banner(void)
{
    char line[96];
    print_to(line, sizeof line, "duck %s, build %016lx", build_version, (unsigned long)build_hash);
    tell(line);
}

static EFI_STATUS fail(const char *what, EFI_STATUS status)
{
    char line[96];
    print_to(line, sizeof line, "duck: %s: UEFI status 0x%lx; giving the machine back", what,
             (unsigned long)status);
    tell(line);
    return status;
}

/* Options as text: from -append or a boot entry. */
static void take_options(const EFI_LOADED_IMAGE *self)
{
    const CHAR16 *text = self->LoadOptions;
    size_t n = text ? self->LoadOptionsSize / sizeof *text : 0;
    if (n > BOOT_OPTIONS - 1) n = BOOT_OPTIONS - 1;
    for (size_t i = 0; i < n; i++) boot.options[i] = text[i] < 128 ? (char)text[i] : '?';
}

/* Booted through PXE: the options are in duck.conf beside the image (UEFI 2.10, 24.3.4). */
static void fetch_options(EFI_HANDLE device)
{
    EFI_GUID guid = EFI_PXE_BASE_CODE_PROTOCOL_GUID;
    EFI_PXE_BASE_CODE *pxe = NULL;
    EFI_IP_ADDRESS server = {0};
    static UINT8 name[] = "duck.conf";
    char line[64];
    UINT64 bytes = BOOT_OPTIONS - 1;
    if (!device || services->HandleProtocol(device, &guid, (void **)&pxe) != EFI_SUCCESS) return;
    if (!pxe->Mode->Started || !pxe->Mode->DhcpAckReceived) return;
    memcpy(&server, pxe->Mode->DhcpAck.Dhcpv4.BootpSiAddr, 4);
    EFI_STATUS s = pxe->Mtftp(pxe, EFI_PXE_BASE_CODE_TFTP_READ_FILE, boot.options, FALSE, &bytes, NULL,
                              &server, name, NULL, FALSE);
    boot.options[s == EFI_SUCCESS && bytes < BOOT_OPTIONS ? bytes : 0] = 0;
    print_to(line, sizeof line, "duck.conf by TFTP: UEFI status 0x%lx, %lu bytes", (unsigned long)s,
             (unsigned long)bytes);
    tell(line);
}

/* Where our own code lies, and the options that it was started with. */
static EFI_STATUS look_at_image(EFI_HANDLE image)
{
    EFI_GUID guid = LOADED_IMAGE_PROTOCOL;
    EFI_LOADED_IMAGE *self = NULL;
    EFI_STATUS s = services->HandleProtocol(image, &guid, (void **)&self);
    if (s != EFI_SUCCESS) return s;
    boot.image = (uint64_t)(uintptr_t)self->ImageBase;
    boot.image_end = boot.image + self->ImageSize;
    take_options(self);
    if (!boot.options[0]) fetch_options(self->DeviceHandle);
    return EFI_SUCCESS;
}

static void find_acpi(void)
{
    static const EFI_GUID wanted[2] = {ACPI_20_TABLE_GUID, ACPI_TABLE_GUID};
    for (size_t w = 0; w < 2 && !boot.acpi_found; w++)
        for (UINTN i = 0; i < system_table->NumberOfTableEntries && !boot.acpi_found; i++) {
            const EFI_CONFIGURATION_TABLE *t = &system_table->ConfigurationTable[i];
            if (memcmp(&t->VendorGuid, &wanted[w], sizeof wanted[w]) == 0)
                boot.acpi_found = acpi_read(&boot.acpi, (uint64_t)(uintptr_t)t->VendorTable) == 0;
        }
}

static void find_screen(void)
{
    _Static_assert((int)PixelBlueGreenRedReserved8BitPerColor == SCREEN_BGR &&
                       (int)PixelBitMask == SCREEN_MASKS && (int)PixelBltOnly == SCREEN_BLT_ONLY,
                   "UEFI's numbers");
    EFI_GUID guid = EFI_GRAPHICS_OUTPUT_PROTOCOL_GUID;
    EFI_GRAPHICS_OUTPUT_PROTOCOL *gop = NULL;
    if (services->LocateProtocol(&guid, NULL, (void **)&gop) != EFI_SUCCESS) return;
    if (!gop || !gop->Mode || !gop->Mode->Info) return;
    const EFI_GRAPHICS_OUTPUT_MODE_INFORMATION *info = gop->Mode->Info;
    const EFI_PIXEL_BITMASK *mask = &info->PixelInformation;
    const struct screen_mode mode = {
        .address = gop->Mode->FrameBufferBase,
        .bytes = gop->Mode->FrameBufferSize,
        .width = info->HorizontalResolution,
        .height = info->VerticalResolution,
        .stride = info->PixelsPerScanLine,
        .format = (uint32_t)info->PixelFormat,
        .mask = {mask->RedMask, mask->GreenMask, mask->BlueMask, mask->ReservedMask}};
    boot.screen = screen_choose(&mode);
}

/* The firmware's network drivers must let go of their devices: they would go on writing frames into memory
 * that is ours. */
static void disconnect_nics(void)
{
    enum { CLASS_DWORD = 2, CLASS_NETWORK = 2 };
    EFI_GUID guid = EFI_PCI_IO_PROTOCOL_GUID;
    EFI_HANDLE *handle = NULL;
    UINTN count = 0;
    if (services->LocateHandleBuffer(ByProtocol, &guid, NULL, &count, &handle) != EFI_SUCCESS) return;
    for (UINTN i = 0; i < count; i++) {
        EFI_PCI_IO_PROTOCOL *pci = NULL;
        UINT32 class = 0;
        if (services->HandleProtocol(handle[i], &guid, (void **)&pci) != EFI_SUCCESS) continue;
        if (pci->Pci.Read(pci, EfiPciIoWidthUint32, CLASS_DWORD * 4, 1, &class) != EFI_SUCCESS) continue;
        if (class >> 24 == CLASS_NETWORK) services->DisconnectController(handle[i], NULL, NULL);
    }
    services->FreePool(handle);
}

static EFI_STATUS reserve_memory(void)
{
    EFI_PHYSICAL_ADDRESS low = 0x9ffff, pool = 0xffffffff;
    EFI_STATUS s = services->AllocatePages(AllocateMaxAddress, EfiLoaderData, 1, &low);
    if (s != EFI_SUCCESS) return s;
    size_t cores = boot.acpi.cores ? boot.acpi.cores : 1;
    boot.pool.bytes = BOOT_TABLES + BOOT_DMA + 4096 + BOOT_PROGRAM + cores * (2 * BOOT_STACK + (16 << 10));
    s = services->AllocatePages(AllocateMaxAddress, EfiLoaderData, boot.pool.bytes / 4096, &pool);
    if (s != EFI_SUCCESS) return s;
    boot.low_page = low;
    boot.pool.memory = (uint8_t *)(uintptr_t)pool;
    return EFI_SUCCESS;
}

/* The map's key goes stale whenever firmware allocates in between (timers do): read and try again, but not
 * for ever (UEFI 2.10, 7.4.6). */
static EFI_STATUS exit_boot_services(EFI_HANDLE image)
{
    enum { ATTEMPTS = 8 };
    static union {
        UINT64 align;
        uint8_t bytes[64 << 10];
    } raw;
    EFI_STATUS s = EFI_ABORTED;
    for (int i = 0; i < ATTEMPTS && s != EFI_SUCCESS; i++) {
        UINTN bytes = sizeof raw, key = 0, step = 0;
        UINT32 version = 0;
        s = services->GetMemoryMap(&bytes, (EFI_MEMORY_DESCRIPTOR *)(void *)raw.bytes, &key, &step, &version);
        if (s != EFI_SUCCESS) return s;
        boot.map.count = boot.map.lost = 0;
        for (UINTN at = 0; at + sizeof(EFI_MEMORY_DESCRIPTOR) <= bytes; at += step) {
            const EFI_MEMORY_DESCRIPTOR *d = (const EFI_MEMORY_DESCRIPTOR *)(const void *)(raw.bytes + at);
            memory_map_add(&boot.map, d->Type, d->PhysicalStart, d->NumberOfPages);
        }
        s = services->ExitBootServices(image, key);
    }
    return s;
}

static void enter(void *argument)
{
    kernel_main(argument);
}

EFI_STATUS efi_main(EFI_HANDLE image, EFI_SYSTEM_TABLE *st)
{
    system_table = st;
    services = st->BootServices;
    console_start();
    banner();
    services->SetWatchdogTimer(0, 0, 0, NULL); // it would restart us while we wait for a host
    EFI_STATUS s = look_at_image(image);
    if (s != EFI_SUCCESS) return fail("loaded image", s);
    find_acpi();
    find_screen();
    s = reserve_memory();
    if (s != EFI_SUCCESS) return fail("memory", s);
    void *stack = boot_pool_take(&boot.pool, BOOT_STACK);
    disconnect_nics();
    s = exit_boot_services(image);
    if (s != EFI_SUCCESS) return fail("ExitBootServices", s);
    __asm__ volatile("cli");
    memory_map_sort(&boot.map);
    stack_switch((uint8_t *)stack + BOOT_STACK, enter, &boot); // the firmware's stack is free memory now
    return EFI_ABORTED;
}
