/* handlers.h: one function per route; each answers c->request at once or leaves an exchange that will. */
#ifndef DUCKD_HOST_HTTP_HANDLERS_H
#define DUCKD_HOST_HTTP_HANDLERS_H

struct connection;
void handle_page(struct connection *c, const char *rest);
void handle_health(struct connection *c, const char *rest);
void handle_models(struct connection *c, const char *rest);
void handle_model(struct connection *c, const char *rest);
void handle_tokenize(struct connection *c, const char *rest);
void handle_chat(struct connection *c, const char *rest);
void handle_completions(struct connection *c, const char *rest);
void handle_metrics(struct connection *c, const char *rest);
void handle_metrics_json(struct connection *c, const char *rest);

#endif
