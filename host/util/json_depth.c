/* json_depth.c: see json_depth.h. */
#include "host/util/json_depth.h"

const char *json_too_deep(const char *text, size_t length, int limit)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > limit) return text + i;
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return NULL;
}

bool json_stopped_too_deep(const char *text, const char *end, int limit)
{
    return end && json_too_deep(text, (size_t)(end - text) + 1, limit) == end;
}
