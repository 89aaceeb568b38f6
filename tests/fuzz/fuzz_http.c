/* fuzz_http.c: arbitrary bytes into a connection of the real server, in front of the scripted model. Whatever
 * comes back must be whole HTTP/1.1 responses with JSON where they say so, until the server closes; and the
 * server must go on answering. The first byte of an input says how the client behaves: bit 0: it says at once
 * that nothing more will come; bit 1: it writes byte by byte. */
#include <arpa/inet.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "host/text/buffer.h"
#include "host/util/log.h"
#include "tests/web/script.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define QUIET_MS 30 // a client that waits no longer than that for more

static struct sockaddr_in address;
static pthread_t thread;
static char listen_on[32];

static void require(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "not so: %s\n", what);
    abort();
}

static void *serve(void *arg)
{
    struct script *s = NULL;
    struct chat_encoding chat;
    struct error err;
    (void)arg;
    require(!script_open(&s, SOURCE_DIR "/models/duckling", 0, &err), "the script opens");
    const struct model_config *c = script_config(s);
    require(!chat_encoding_init(&chat, script_tokenizer(s), c->bos_id, c->eos_id[0], &err), "chat");
    const struct http_options o = {.listen = listen_on,
                                   .model_name = "script",
                                   .lanes = SCRIPT_LANES,
                                   .queue = 8,
                                   .connections = 64,
                                   .max_body = 64u << 10,
                                   .request_timeout_s = 5,
                                   .idle_timeout_s = 5,
                                   .drain_timeout_s = 2,
                                   .config = c,
                                   .tokenizer = script_tokenizer(s),
                                   .chat = &chat,
                                   .sampling = SAMPLING_GREEDY,
                                   .load = script_load,
                                   .ctx = s};
    require(!http_serve(&o, &err), "the server ends as asked");
    script_close(s);
    return NULL;
}

static int dial(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct linger reset = {1, 0}; // thousands of connections must not use up the ports
    require(fd >= 0, "a socket");
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

/* So that everything is freed and a leak is seen. */
static void stop(void)
{
    kill(getpid(), SIGTERM);
    pthread_join(thread, NULL);
}

static void start(void)
{
    socklen_t length = sizeof address;
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    require(!bind(fd, (struct sockaddr *)&address, sizeof address), "a port");
    require(!getsockname(fd, (struct sockaddr *)&address, &length), "a port");
    close(fd);
    snprintf(listen_on, sizeof listen_on, "127.0.0.1:%u", ntohs(address.sin_port));
    log_set_level(LOG_ERROR);
    require(!pthread_create(&thread, NULL, serve, NULL), "a thread");
    for (int i = 0; (fd = dial()) < 0; i++) {
        require(i < 3000, "the server listens within a minute");
        usleep(20000);
    }
    close(fd);
    atexit(stop);
}

/* ---- what came back ---- */

static void check_json(const char *text, size_t length)
{
    cJSON *json = cJSON_ParseWithLength(text, length);
    require(json != NULL, "JSON parses");
    cJSON_Delete(json);
}

static void check_events(const char *text, size_t length)
{
    for (const char *at = text, *end; (end = memmem(at, length - (size_t)(at - text), "\n\n", 2));
         at = end + 2) {
        require(!memcmp(at, "data: ", 6) || *at == ':', "an event is data or a comment");
        if (*at != ':' && memcmp(at, "data: [DONE]", 12) != 0) check_json(at + 6, (size_t)(end - at) - 6);
    }
}

/* A chunked body at `at`; returns what is behind it, NULL: it was cut off. */
static char *check_chunks(char *at, const char *end)
{
    struct buffer body = {0};
    char *next = NULL;
    for (;;) {
        char *line = memmem(at, (size_t)(end - at), "\r\n", 2);
        if (!line) break;
        size_t length = strtoul(at, NULL, 16);
        at = line + 2;
        if (length + 2 > (size_t)(end - at)) break;
        require(!memcmp(at + length, "\r\n", 2), "a chunk ends");
        buffer_append(&body, at, length);
        at += length + 2;
        if (length) continue;
        next = at;
        break;
    }
    if (body.length) check_events(body.data, body.length);
    buffer_free(&body);
    return next;
}

static void check_answers(struct buffer *b)
{
    char *at = b->data, *end = at + b->length;
    while (at && at < end) {
        require((size_t)(end - at) > 12 && !memcmp(at, "HTTP/1.1 ", 9), "a response begins");
        char *head = memmem(at, (size_t)(end - at), "\r\n\r\n", 4);
        require(head != NULL, "a head is whole");
        int status = atoi(at + 9);
        require(status >= 100 && status < 600, "a status");
        *head = '\0';
        const char *length = strstr(at, "\r\nContent-Length: "), *json = strstr(at, "application/json");
        bool chunked = strstr(at, "\r\nTransfer-Encoding: chunked");
        bool closes = strstr(at, "\r\nConnection: close"), stream = strstr(at, "text/event-stream");
        at = head + 4;
        if (status == 100 || status == 204) continue;
        if (chunked) {
            at = check_chunks(at, end);
        } else if (stream) { // to the end of the connection
            check_events(at, (size_t)(end - at));
            return;
        } else {
            require(length != NULL, "a length");
            size_t n = strtoul(length + 18, NULL, 10);
            if (at == end && closes) return; // HEAD, or the client was cut off
            if (n > (size_t)(end - at) || !memcmp(at, "HTTP/1.1 ", n < 9 ? n : 9)) continue; // HEAD
            if (json) check_json(at, n);
            at += n;
        }
    }
}

static void converse(int fd, const uint8_t *data, size_t size, bool half_close, bool slowly)
{
    struct buffer got = {0};
    static char piece[64 << 10];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (size_t at = 0, n; at < size; at += n) {
        n = slowly && at < 200 ? 1 : size - at;
        ssize_t sent = send(fd, data + at, n, MSG_NOSIGNAL);
        if (sent <= 0) break;
        n = (size_t)sent;
    }
    if (half_close) shutdown(fd, SHUT_WR);
    while (poll(&p, 1, half_close ? 2000 : QUIET_MS) > 0) {
        ssize_t n = recv(fd, piece, sizeof piece, 0);
        if (n <= 0) break;
        buffer_append(&got, piece, (size_t)n);
    }
    if (got.length) check_answers(&got);
    buffer_free(&got);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned runs;
    if (!thread) start();
    if (size == 0) return 0;
    int fd = dial();
    require(fd >= 0, "the server accepts");
    converse(fd, data + 1, size - 1, data[0] & 1, data[0] & 2);
    close(fd);
    if (++runs % 64) return 0;
    static const char health[] = "GET /health HTTP/1.0\r\n\r\n";
    char answer[16] = "";
    fd = dial();
    require(fd >= 0 && send(fd, health, sizeof health - 1, MSG_NOSIGNAL) > 0, "the server is there");
    require(recv(fd, answer, 12, MSG_WAITALL) == 12 && !strncmp(answer, "HTTP/1.1 ", 9),
            "the server answers");
    close(fd);
    return 0;
}
