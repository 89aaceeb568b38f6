/* read.c: files, folders and links below the root. */
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/doctor/doctor.h"

#define PATH_BYTES 512

static void path_of(const struct doctor *d, char out[PATH_BYTES], const char *format, va_list ap)
{
    int n = snprintf(out, PATH_BYTES, "%s", d->root);
    if (n >= 0 && n < PATH_BYTES) vsnprintf(out + n, (size_t)(PATH_BYTES - n), format, ap);
}

void doctor__say(struct doctor *d, enum doctor_verdict verdict, const char *name, const char *advice,
                 const char *format, ...)
{
    if (d->count == DOCTOR_FINDINGS) return;
    struct finding *f = &d->finding[d->count++];
    *f = (struct finding){.verdict = verdict};
    snprintf(f->name, sizeof f->name, "%s", name);
    if (verdict != DOCTOR_OK) snprintf(f->advice, sizeof f->advice, "%s", advice);
    va_list ap;
    va_start(ap, format);
    vsnprintf(f->found, sizeof f->found, format, ap);
    va_end(ap);
}

bool doctor__read(const struct doctor *d, char *out, size_t size, const char *format, ...)
{
    char path[PATH_BYTES];
    va_list ap;
    va_start(ap, format);
    path_of(d, path, format, ap);
    va_end(ap);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    size_t n = fread(out, 1, size - 1, f);
    bool good = !ferror(f); // some files of sysfs can be opened and not be read
    fclose(f);
    if (n && out[n - 1] == '\n') n--;
    out[n] = 0;
    return good;
}

bool doctor__exists(const struct doctor *d, const char *format, ...)
{
    char path[PATH_BYTES];
    va_list ap;
    va_start(ap, format);
    path_of(d, path, format, ap);
    va_end(ap);
    return access(path, F_OK) == 0;
}

bool doctor__link(const struct doctor *d, char *out, size_t size, const char *format, ...)
{
    char path[PATH_BYTES], target[PATH_BYTES];
    va_list ap;
    va_start(ap, format);
    path_of(d, path, format, ap);
    va_end(ap);
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0) return false;
    target[n] = 0;
    const char *slash = strrchr(target, '/');
    snprintf(out, size, "%s", slash ? slash + 1 : target);
    return true;
}

int doctor__entries(const struct doctor *d, const char *path)
{
    char whole[PATH_BYTES];
    snprintf(whole, sizeof whole, "%s%s", d->root, path);
    DIR *dir = opendir(whole);
    if (!dir) return -1;
    int n = 0;
    for (const struct dirent *e; (e = readdir(dir));) n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

bool doctor__in_list(const char *list, unsigned number)
{
    while (*list) {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;
        if (end == list) return false;
        if (*end == '-') last = strtoul(end + 1, &end, 10);
        if (number >= first && number <= last) return true;
        list = *end == ',' ? end + 1 : end;
    }
    return false;
}
