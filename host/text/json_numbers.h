/* json_numbers.h: numbers of a parsed JSON text as they were written.
 *
 * cJSON keeps numbers as doubles: 1.0 becomes 1, and an identifier of 19 digits another one. Where a text is
 * parsed in order to be written again, the source of each number stays beside it, as its `valuestring` (which
 * cJSON leaves empty for numbers, and frees). */
#ifndef DUCKD_HOST_TEXT_JSON_NUMBERS_H
#define DUCKD_HOST_TEXT_JSON_NUMBERS_H

#include <cjson/cJSON.h>

#include "host/text/buffer.h"

/* root: parsed from `text`, which begins with it. False: no memory. */
bool json_keep_numbers(cJSON *root, const char *text);
/* As Python writes the number: a whole one as it is, any other one with the fewest digits that give it again.
 */
void json_put_number(struct buffer *b, const cJSON *number);

#endif
