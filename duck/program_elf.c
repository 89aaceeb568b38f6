/* program_elf.c: ELF64 program headers, dynamic section and relative relocations (System V ABI, x86-64). */
#include "duck/program_elf.h"

#include <string.h>

struct elf_header {
    uint8_t ident[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, phoff, shoff;
    uint32_t flags;
    uint16_t ehsize, phentsize, phnum, shentsize, shnum, shstrndx;
};
_Static_assert(sizeof(struct elf_header) == 64, "Elf64_Ehdr");

struct elf_program_header {
    uint32_t type, flags;
    uint64_t offset, vaddr, paddr, filesz, memsz, align;
};
_Static_assert(sizeof(struct elf_program_header) == 56, "Elf64_Phdr");

struct elf_rela {
    uint64_t offset, info;
    int64_t addend;
};

enum { ET_DYN = 3, EM_X86_64 = 62, PT_LOAD = 1, PT_DYNAMIC = 2, PT_NOTE = 4, PF_X = 1, PF_W = 2 };
enum { DT_NULL = 0, DT_RELA = 7, DT_RELASZ = 8, DT_RELAENT = 9, DT_JMPREL = 23, R_RELATIVE = 8 };
enum { SPAN_MAX = 16 << 20 };

static int within(uint64_t at, uint64_t bytes, uint64_t size)
{
    return at <= size && bytes <= size - at;
}

static int take_segment(const struct elf_program_header *p, size_t file_bytes, struct program_image *out)
{
    uint64_t first = p->vaddr / PROGRAM_PAGE * PROGRAM_PAGE;
    if (p->memsz == 0) return PROGRAM_OK;
    if (!within(p->offset, p->filesz, file_bytes) || p->filesz > p->memsz ||
        !within(p->vaddr, p->memsz, SPAN_MAX) || out->segments == PROGRAM_SEGMENTS ||
        (p->flags & PF_W && p->flags & PF_X) || first < out->span)
        return PROGRAM_BAD_SEGMENT; // ascending, and no two in one page
    uint64_t end = (p->vaddr + p->memsz + PROGRAM_PAGE - 1) / PROGRAM_PAGE * PROGRAM_PAGE;
    out->segment[out->segments++] = (struct program_segment){.at = first,
                                                             .bytes = end - first,
                                                             .file_at = p->vaddr,
                                                             .file_bytes = p->filesz,
                                                             .file_offset = p->offset,
                                                             .writable = (p->flags & PF_W) != 0,
                                                             .executable = (p->flags & PF_X) != 0};
    out->span = end;
    return PROGRAM_OK;
}

/* The dynamic section may ask for relative relocations and for nothing else to be done. */
static int read_dynamic(const uint8_t *elf, const struct elf_program_header *p, size_t bytes,
                        struct program_image *out)
{
    if (!within(p->offset, p->filesz, bytes)) return PROGRAM_BAD_SEGMENT;
    for (uint64_t at = 0; at + 16 <= p->filesz; at += 16) {
        uint64_t entry[2];
        memcpy(entry, elf + p->offset + at, sizeof entry);
        if (entry[0] == DT_NULL) break;
        if (entry[0] == DT_RELA) out->relocations = entry[1];
        if (entry[0] == DT_RELASZ) out->relocation_bytes = entry[1];
        if (entry[0] == DT_JMPREL || (entry[0] == DT_RELAENT && entry[1] != sizeof(struct elf_rela)))
            return PROGRAM_BAD_RELOC;
    }
    return PROGRAM_OK;
}

/* 1: the note that names our ABI. */
static int is_our_note(const uint8_t *elf, const struct elf_program_header *p, size_t bytes)
{
    static const char name[8] = "duckd";
    if (!within(p->offset, p->filesz, bytes)) return 0;
    for (uint64_t at = 0; at + 12 <= p->filesz;) {
        uint32_t head[3], abi;
        memcpy(head, elf + p->offset + at, sizeof head);
        uint64_t name_bytes = ((uint64_t)head[0] + 3) / 4 * 4, data_bytes = ((uint64_t)head[1] + 3) / 4 * 4;
        if (name_bytes + data_bytes > p->filesz - at - 12) return 0;
        const uint8_t *note = elf + p->offset + at + 12;
        if (head[0] == 6 && head[1] == 4 && head[2] == PROGRAM_NOTE && memcmp(note, name, 6) == 0) {
            memcpy(&abi, note + name_bytes, sizeof abi);
            return abi == PROGRAM_ABI;
        }
        at += 12 + name_bytes + data_bytes;
    }
    return 0;
}

static int entry_is_executable(const struct program_image *image)
{
    for (uint32_t i = 0; i < image->segments; i++) {
        const struct program_segment *s = &image->segment[i];
        if (s->executable && image->entry >= s->file_at && image->entry - s->file_at < s->file_bytes)
            return 1;
    }
    return 0;
}

int program_check(const uint8_t *elf, size_t bytes, struct program_image *out)
{
    static const uint8_t ident[7] = {0x7f, 'E', 'L', 'F', 2, 1, 1}; // 64 bits, little-endian, version 1
    struct elf_header h;
    int rc, noted = 0;
    memset(out, 0, sizeof *out);
    if (bytes < sizeof h) return PROGRAM_NOT_ELF;
    memcpy(&h, elf, sizeof h);
    if (memcmp(h.ident, ident, sizeof ident) != 0 || h.type != ET_DYN || h.machine != EM_X86_64 ||
        h.phentsize != sizeof(struct elf_program_header) ||
        !within(h.phoff, (uint64_t)h.phnum * sizeof(struct elf_program_header), bytes))
        return PROGRAM_NOT_ELF;
    for (uint32_t i = 0; i < h.phnum; i++) {
        struct elf_program_header p;
        memcpy(&p, elf + h.phoff + i * sizeof p, sizeof p);
        rc = PROGRAM_OK;
        if (p.type == PT_LOAD) rc = take_segment(&p, bytes, out);
        if (p.type == PT_DYNAMIC) rc = read_dynamic(elf, &p, bytes, out);
        if (p.type == PT_NOTE && is_our_note(elf, &p, bytes)) noted = 1;
        if (rc) return rc;
    }
    out->entry = h.entry;
    if (!noted) return PROGRAM_OTHER_ABI;
    if (!entry_is_executable(out)) return PROGRAM_BAD_ENTRY;
    if (!within(out->relocations, out->relocation_bytes, out->span)) return PROGRAM_BAD_RELOC;
    return PROGRAM_OK;
}

/* 8 bytes at `at` lie in a writable segment. */
static int may_be_relocated(const struct program_image *image, uint64_t at)
{
    for (uint32_t i = 0; i < image->segments; i++) {
        const struct program_segment *s = &image->segment[i];
        if (s->writable && at >= s->at && within(at - s->at, 8, s->bytes)) return 1;
    }
    return 0;
}

int program_place(const uint8_t *elf, const struct program_image *image, uint8_t *memory, uint64_t address)
{
    for (uint32_t i = 0; i < image->segments; i++) {
        const struct program_segment *s = &image->segment[i];
        memcpy(memory + s->file_at, elf + s->file_offset, s->file_bytes);
    }
    for (uint64_t at = 0; at + sizeof(struct elf_rela) <= image->relocation_bytes;
         at += sizeof(struct elf_rela)) {
        struct elf_rela r;
        memcpy(&r, memory + image->relocations + at, sizeof r);
        if (r.info != R_RELATIVE || !may_be_relocated(image, r.offset)) return PROGRAM_BAD_RELOC;
        uint64_t value = address + (uint64_t)r.addend;
        memcpy(memory + r.offset, &value, sizeof value);
    }
    return PROGRAM_OK;
}
