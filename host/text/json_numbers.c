/* json_numbers.c: numbers come in the same order in a text and in its tree, and outside strings nothing else
 * has a digit or a sign in it. */
#include "host/text/json_numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char number_characters[] = "+-.0123456789eE";

static const char *after_string(const char *text)
{
    for (text++; *text && *text != '"'; text++)
        if (*text == '\\' && text[1]) text++;
    return *text ? text + 1 : text;
}

static const char *next_number(const char *text)
{
    while (*text && *text != '-' && !(*text >= '0' && *text <= '9'))
        text = *text == '"' ? after_string(text) : text + 1;
    return text;
}

/* Children of `item` too, as deep as the parser let it be. */
static bool keep(cJSON *item, const char **text)
{
    for (cJSON *child = item->child; child; child = child->next)
        if (!keep(child, text)) return false;
    if (!cJSON_IsNumber(item)) return true;
    *text = next_number(*text);
    size_t length = strspn(*text, number_characters);
    item->valuestring = strndup(*text, length);
    *text += length;
    return item->valuestring != NULL;
}

bool json_keep_numbers(cJSON *root, const char *text)
{
    return keep(root, &text);
}

void json_put_number(struct buffer *b, const cJSON *number)
{
    const char *source = number->valuestring;
    double x = number->valuedouble;
    bool whole = source ? !strpbrk(source, ".eE") : x == floor(x) && fabs(x) < 1e15;
    char text[40];
    int digits = 0; // behind the first one
    if (whole && source)
        buffer_text(b, source);
    else if (whole)
        buffer_printf(b, "%.0f", x);
    if (whole) return;
    do snprintf(text, sizeof text, "%.*e", digits, x);
    while (strtod(text, NULL) != x && ++digits < 17);
    int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent < -4 || exponent >= 16)
        buffer_text(b, text);
    else
        buffer_printf(b, "%.*f", digits > exponent ? digits - exponent : 1, x);
}
