/* access_log.h: one JSON line on stderr per request, written when its response is queued or its client left.
 */
#ifndef DUCKD_HOST_HTTP_ACCESS_LOG_H
#define DUCKD_HOST_HTTP_ACCESS_LOG_H

struct connection;
void access_log(const struct connection *c);

#endif
