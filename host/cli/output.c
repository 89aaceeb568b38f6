/* output.c: see output.h. */
#include "host/cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int stdout_failed(int code, struct error *err)
{
    if (code == EPIPE) {
        error_set(err, -EPIPE, "%s", "");
        return -EPIPE;
    }
    return error_set(err, -code, "stdout cannot be written: %s", strerror(code));
}

int output_text(const char *text, size_t length, struct error *err)
{
    if (length == 0) return 0;
    if (fwrite(text, 1, length, stdout) != length || fflush(stdout) != 0) return stdout_failed(errno, err);
    return 0;
}

int output_finish(struct error *err)
{
    if (fflush(stdout) != 0) return stdout_failed(errno, err);
    return 0;
}

/* A file without a name in the folder of f->path, or one with f->temporary's. */
static FILE *open_hidden(struct output_file *f)
{
    char folder[4096];
    strcpy(folder, f->path);
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    int fd = open(slash ? folder : ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    f->nameless = fd >= 0;
    if (fd < 0) fd = open(f->temporary, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
    return fd < 0 ? NULL : fdopen(fd, "w+b");
}

/* stdout once more. Not by its name: opened again, a file would have a second place to write at, and what
 * comes after us would overwrite ours. */
static FILE *open_stdout(void)
{
    int fd = dup(STDOUT_FILENO);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
    if (fd < 0 || f) return f;
    close(fd);
    errno = EBADF; // it is open, but not for writing
    return NULL;
}

int output_open(struct output_file *f, const char *path, struct error *err)
{
    struct stat st;
    *f = (struct output_file){0};
    if (!strcmp(path, "-") || !strcmp(path, "/dev/stdout")) {
        strcpy(f->path, "stdout");
        f->stream = open_stdout();
        return f->stream ? 0 : stdout_failed(errno, err);
    }
    if (strlen(path) >= sizeof f->path) {
        return error_set(err, -ENAMETOOLONG, "a path of %zu characters is too long", strlen(path));
    }
    if (!realpath(path, f->path)) { // what a link points to is replaced, not the link
        int code = errno;
        if (lstat(path, &st) == 0)
            return error_set(err, -code, "%s: cannot be written: a link to nowhere: %s", path,
                             strerror(code));
        strcpy(f->path, path);
    }
    if (!strncmp(path, "/dev/", 5)) {
        f->stream = fopen(path, "ab"); // /dev/fd/3 may be a file of somebody else's by now
    } else if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        if (S_ISDIR(st.st_mode))
            return error_set(err, -EISDIR, "%s: cannot be written: it is a directory", path);
        f->stream = fopen(path, "wb");
    } else if (access(path, F_OK) == 0 && access(path, W_OK) != 0) {
        f->stream = NULL; // renaming over a write-protected file would succeed and surprise
    } else {
        snprintf(f->temporary, sizeof f->temporary, "%s.part-%ld", f->path, (long)getpid());
        f->stream = open_hidden(f);
    }
    if (!f->stream) return error_set(err, -errno, "%s: cannot be written: %s", path, strerror(errno));
    return 0;
}

/* Gives the complete file its name. */
static int name_file(const struct output_file *f, int fd)
{
    char self[40];
    if (!f->temporary[0]) return 0;
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    if (f->nameless && linkat(AT_FDCWD, self, AT_FDCWD, f->temporary, AT_SYMLINK_FOLLOW) != 0) return -errno;
    if (rename(f->temporary, f->path) == 0) return 0;
    int code = errno;
    unlink(f->temporary);
    return -code;
}

int output_commit(struct output_file *f, struct error *err)
{
    int rc = fflush(f->stream) != 0 || ferror(f->stream) ? -errno : name_file(f, fileno(f->stream));
    if (rc && f->temporary[0] && !f->nameless) unlink(f->temporary);
    fclose(f->stream); // flushed above
    f->stream = NULL;
    if (rc == -EPIPE) return stdout_failed(EPIPE, err);
    if (rc) return error_set(err, rc, "%s: cannot be written: %s", f->path, strerror(-rc));
    return 0;
}

void output_abandon(struct output_file *f)
{
    if (!f->stream) return;
    fclose(f->stream);
    f->stream = NULL;
    if (f->temporary[0] && !f->nameless) unlink(f->temporary);
}

int output_directory(const char *path, struct error *err)
{
    char part[4096];
    struct stat st;
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = part + 1; *slash; slash++) {
        if (*slash != '/') continue;
        *slash = 0;
        mkdir(part, 0777); // what is missing is noticed below
        *slash = '/';
    }
    if (mkdir(part, 0777) != 0 && errno != EEXIST) {
        return error_set(err, -errno, "%s: cannot be made: %s", path, strerror(errno));
    }
    if (stat(part, &st) != 0 || !S_ISDIR(st.st_mode)) {
        return error_set(err, -ENOTDIR, "%s: is not a directory", path);
    }
    if (access(part, W_OK) != 0) {
        return error_set(err, -errno, "%s: cannot be written: %s", path, strerror(errno));
    }
    return 0;
}

void output_csv_field(FILE *to, const char *text, size_t length)
{
    bool quote = false;
    for (size_t i = 0; i < length; i++) quote |= text[i] && strchr(",\"\r\n", text[i]) != NULL;
    if (!quote) {
        if (length) fwrite(text, 1, length, to); // an empty text may be NULL
        return;
    }
    fputc('"', to);
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '"') fputc('"', to);
        fputc(text[i], to);
    }
    fputc('"', to);
}

void output_json_string(FILE *to, const char *text, size_t length)
{
    fputc('"', to);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        switch (c) {
        case '"':
            fputs("\\\"", to);
            break;
        case '\\':
            fputs("\\\\", to);
            break;
        case '\n':
            fputs("\\n", to);
            break;
        case '\r':
            fputs("\\r", to);
            break;
        case '\t':
            fputs("\\t", to);
            break;
        default:
            if (c < 0x20 || c == 0x7f) {
                fprintf(to, "\\u%04x", c);
            } else {
                fputc(c, to);
            }
        }
    }
    fputc('"', to);
}

void output_json_number(FILE *to, double x, int decimals)
{
    if (isfinite(x)) {
        fprintf(to, "%.*f", decimals, x);
    } else {
        fputs("null", to);
    }
}
