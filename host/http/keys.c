/* keys.c: API keys. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "host/http/connection.h"
#include "host/http/routes.h"

#define MAX_KEY (CONNECTION_MAX_HEAD / 2) // bytes: the other half of a head is for the other headers

/* A line of a file of keys, which getline() ended with a NUL. Blanks around a key never reach us in a header.
 */
static int add_line(struct server *s, char *line, size_t length, const char *path, unsigned number,
                    struct error *err)
{
    while (length && strchr(" \t\r\n", line[length - 1])) line[--length] = '\0';
    const size_t blank = strspn(line, " \t");
    line += blank;
    length -= blank;
    if (length == 0 || line[0] == '#') return 0;
    if (length > MAX_KEY)
        return error_set(err, -EINVAL, "%s: line %u has %zu bytes, a key can have %u", path, number, length,
                         MAX_KEY);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)line[i];
        if (c >= ' ' && c != 0x7f) continue;
        return error_set(err, -EINVAL, "%s: line %u has a byte 0x%02x, which no header can carry: not a key",
                         path, number, (unsigned)c);
    }
    char **grown = realloc(s->key, (s->key_count + 1) * sizeof *grown);
    if (grown) s->key = grown;
    char *copy = grown ? strdup(line) : NULL;
    if (!copy) return error_set(err, -ENOMEM, "out of memory");
    s->key[s->key_count++] = copy;
    return 0;
}

int keys_read(struct server *s, const char *path, struct error *err)
{
    FILE *f = fopen(path, "re");
    if (!f) return error_set(err, -errno, "%s: cannot be opened: %s", path, strerror(errno));
    char *line = NULL;
    size_t size = 0;
    int rc = 0;
    errno = 0;
    ssize_t length = 0;
    for (unsigned number = 1; !rc && (length = getline(&line, &size, f)) >= 0; number++)
        rc = add_line(s, line, (size_t)length, path, number, err);
    if (!rc && !feof(f)) rc = error_set(err, -errno, "%s: cannot be read: %s", path, strerror(errno));
    free(line);
    fclose(f);
    // An empty file must not mean that everybody may come in.
    if (!rc && s->key_count == 0) rc = error_set(err, -EINVAL, "%s: holds no key", path);
    return rc;
}

/* Takes the same time wherever the two differ. */
static bool same(const char *key, const char *given, size_t given_length)
{
    size_t length = strlen(key);
    unsigned char difference = length != given_length;
    for (size_t i = 0; i < given_length; i++)
        difference |= (unsigned char)(key[length ? i % length : 0] ^ given[i]);
    return difference == 0;
}

bool keys_accept(const struct server *s, const char *authorization)
{
    if (s->key_count == 0) return true;
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0) return false;
    const char *given = authorization + 7;
    while (*given == ' ') given++;
    bool found = false;
    for (size_t i = 0; i < s->key_count; i++) found |= same(s->key[i], given, strlen(given));
    return found;
}

void keys_free(struct server *s)
{
    for (size_t i = 0; i < s->key_count; i++) free(s->key[i]);
    free(s->key);
    s->key = NULL;
    s->key_count = 0;
}
