/*
 * A fixed-answer inference engine for benchmarks: one thread, epoll, HTTP/1.1 keep-alive and pipelining.
 *
 *   mock_upstream PORT        listens on 127.0.0.1, runs until it is killed
 *
 * POST: a chat completion of about 1 KB (of 10 or 100 where the body says "in 10 KB" or "in 100 KB"); when the body asks for a stream, 64 content events, the usage event and
 * [DONE], each in an HTTP chunk of its own, written at once; a stream whose body says "stay silent" gets the first event
 * and then nothing, until the client leaves. POST .../render: the prompt's token ids, as vLLM has it.
 * GET /count: how many completions were answered so far. Any other GET: what routers ask of a healthy engine. Bodies
 * need a Content-Length; one larger than the buffer, or any other error of the client, closes its connection.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BUFFER_BYTES (256 * 1024)
#define CONTENT_EVENTS 64
#define PROMPT_TOKENS 210
#define EVENTS_PER_WAIT 256

struct connection {
    int fd;
    bool waits_for_room;
    size_t received;
    const char *reply;
    size_t reply_left;
    char count_reply[256];
    char buffer[BUFFER_BYTES + 1];
};

/* Whole answers of about 1, 10 and 100 KB; the larger ones to requests that hold their words. */
static char json_replies[3][128 * 1024];
static size_t json_reply_sizes[3];
static const int json_sentences[3] = {10, 153, 1582};
static const char *const json_words[3] = {"", "in 10 KB", "in 100 KB"};
static char render_reply[4096], get_reply[1024], stream_reply[64 * 1024];
static size_t render_reply_size, get_reply_size, stream_reply_size, silent_reply_size;
static unsigned long long answered;

static void fail(const char *what)
{
    fprintf(stderr, "mock_upstream: %s: %s\n", what, strerror(errno));
    exit(1);
}

static size_t http_reply(char *into, size_t room, const char *body)
{
    return (size_t)snprintf(into, room,
                            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
                            strlen(body), body);
}

static void append_event(const char *data)
{
    stream_reply_size += (size_t)snprintf(stream_reply + stream_reply_size, sizeof stream_reply - stream_reply_size,
                                          "%zx\r\ndata: %s\n\n\r\n", strlen(data) + 8, data);
}

static void prepare_replies(void)
{
    static const char head[] = "\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"created\":1700000000,"
                               "\"model\":\"bench-model\"";
    static const char usage[] = "{\"prompt_tokens\":210,\"total_tokens\":274,\"completion_tokens\":64,"
                                "\"prompt_tokens_details\":{\"cached_tokens\":128}}";
    static const char sentence[] = "The hearth keeps the room warm while the rain goes on outside. ";
    static char body[112 * 1024], text[104 * 1024];

    for (int size = 0; size < 3; size++) {
        char *end = text;
        for (int i = 0; i < json_sentences[size]; i++)
            end = stpcpy(end, sentence);
        snprintf(body, sizeof body,
                 "{%s,\"object\":\"chat.completion\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
                 "\"content\":\"%s\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":%s}",
                 head, text, usage);
        json_reply_sizes[size] = http_reply(json_replies[size], sizeof json_replies[size], body);
    }

    size_t written =
        (size_t)snprintf(body, sizeof body, "{\"request_id\":\"0\",\"model\":\"bench-model\",\"token_ids\":[");
    for (int i = 0; i < PROMPT_TOKENS; i++)
        written += (size_t)snprintf(body + written, sizeof body - written, "%d%s", 1000 + i,
                                    i < PROMPT_TOKENS - 1 ? "," : "]}");
    render_reply_size = http_reply(render_reply, sizeof render_reply, body);

    get_reply_size = http_reply(get_reply, sizeof get_reply,
                                "{\"status\":\"ok\",\"object\":\"list\",\"model_path\":\"bench-model\",\"data\":["
                                "{\"id\":\"bench-model\",\"object\":\"model\",\"created\":1700000000,"
                                "\"owned_by\":\"bench\",\"max_model_len\":8192}]}");

    stream_reply_size = (size_t)snprintf(stream_reply, sizeof stream_reply,
                                         "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                                         "transfer-encoding: chunked\r\n\r\n");
    for (int i = 0; i < CONTENT_EVENTS; i++) {
        snprintf(body, sizeof body,
                 "{%s,\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{%s\"content\":"
                 "\" warm\"},\"logprobs\":null,\"finish_reason\":%s}]}",
                 head, i == 0 ? "\"role\":\"assistant\"," : "", i == CONTENT_EVENTS - 1 ? "\"stop\"" : "null");
        append_event(body);
        if (i == 0)
            silent_reply_size = stream_reply_size;
    }
    snprintf(body, sizeof body, "{%s,\"object\":\"chat.completion.chunk\",\"choices\":[],\"usage\":%s}", head, usage);
    append_event(body);
    append_event("[DONE]");
    stream_reply_size += (size_t)snprintf(stream_reply + stream_reply_size, sizeof stream_reply - stream_reply_size,
                                          "0\r\n\r\n");
}

/* Return the request's Content-Length, 0 without one, -1 for a length that is no number or a body in chunks. */
static long body_length(const char *headers, const char *end)
{
    for (const char *line = strstr(headers, "\r\n"); line != NULL && line < end; line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, "transfer-encoding:", 18) == 0)
            return -1;
        if (strncasecmp(line, "content-length:", 15) == 0) {
            char *after;
            long length = strtol(line + 15, &after, 10);
            return after == line + 15 || length < 0 ? -1 : length;
        }
    }
    return 0;
}

static bool asks_for_stream(const char *body, size_t length)
{
    return memmem(body, length, "\"stream\":true", 13) != NULL || memmem(body, length, "\"stream\": true", 14) != NULL;
}

/* The size of the answer that a request asks for. */
static int size_wanted(const char *body, size_t length)
{
    for (int size = 2; size > 0; size--)
        if (memmem(body, length, json_words[size], strlen(json_words[size])) != NULL)
            return size;
    return 0;
}

static void choose_reply(struct connection *c, const char *body, size_t length)
{
    size_t path_end = 5 + strcspn(c->buffer + 5, " ");

    if (strncmp(c->buffer, "POST ", 5) == 0 && path_end > 12 && memcmp(c->buffer + path_end - 7, "/render", 7) == 0) {
        c->reply = render_reply;
        c->reply_left = render_reply_size;
    } else if (strncmp(c->buffer, "POST ", 5) == 0) {
        bool stream = asks_for_stream(body, length);
        answered++;
        int size = stream ? 0 : size_wanted(body, length);
        c->reply = stream ? stream_reply : json_replies[size];
        c->reply_left = stream ? stream_reply_size : json_reply_sizes[size];
        if (stream && memmem(body, length, "stay silent", 11) != NULL)
            c->reply_left = silent_reply_size;
    } else if (strncmp(c->buffer, "GET /count ", 11) == 0) {
        char number[32];
        snprintf(number, sizeof number, "%llu", answered);
        c->reply = c->count_reply;
        c->reply_left = http_reply(c->count_reply, sizeof c->count_reply, number);
    } else {
        c->reply = get_reply;
        c->reply_left = get_reply_size;
    }
}

/* Take the first whole request off the buffer and choose its reply. 1: taken, 0: more is needed, -1: bad request. */
static int take_request(struct connection *c)
{
    c->buffer[c->received] = '\0';
    char *end = strstr(c->buffer, "\r\n\r\n");
    if (end == NULL)
        return c->received == BUFFER_BYTES ? -1 : 0;
    size_t head = (size_t)(end - c->buffer) + 4;
    long length = body_length(c->buffer, end);
    if (length < 0 || head + (size_t)length > BUFFER_BYTES)
        return -1;
    if (c->received < head + (size_t)length)
        return 0;
    choose_reply(c, c->buffer + head, (size_t)length);
    c->received -= head + (size_t)length;
    memmove(c->buffer, c->buffer + head + (size_t)length, c->received);
    return 1;
}

static bool watch(int epoll, struct connection *c, int operation, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = c};
    return epoll_ctl(epoll, operation, c->fd, &event) == 0;
}

/* Write what is left of the reply. False: the client is gone. */
static bool write_reply(int epoll, struct connection *c)
{
    while (c->reply_left > 0) {
        ssize_t sent = send(c->fd, c->reply, c->reply_left, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            c->waits_for_room = true;
            return watch(epoll, c, EPOLL_CTL_MOD, EPOLLOUT);
        }
        if (sent < 0)
            return false;
        c->reply += sent;
        c->reply_left -= (size_t)sent;
    }
    if (c->waits_for_room) {
        c->waits_for_room = false;
        return watch(epoll, c, EPOLL_CTL_MOD, EPOLLIN);
    }
    return true;
}

/* Read, answer and write as far as possible without waiting. False: close the connection. */
static bool serve(int epoll, struct connection *c)
{
    if (!write_reply(epoll, c))
        return false;
    if (c->waits_for_room)
        return true;
    ssize_t got = recv(c->fd, c->buffer + c->received, BUFFER_BYTES - c->received, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN))
        return false;
    if (got > 0)
        c->received += (size_t)got;
    int taken = 0;
    while (!c->waits_for_room && c->received > 0 && (taken = take_request(c)) == 1)
        if (!write_reply(epoll, c))
            return false;
    return taken >= 0;
}

static int listen_on(uint16_t port)
{
    int yes = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) < 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, 1024) < 0)
        fail("cannot listen");
    return fd;
}

static void accept_all(int epoll, int listener)
{
    for (;;) {
        int yes = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (fd < 0)
            return;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        struct connection *c = malloc(sizeof *c);
        if (c == NULL)
            fail("out of memory");
        c->fd = fd;
        c->waits_for_room = false;
        c->received = c->reply_left = 0;
        if (!watch(epoll, c, EPOLL_CTL_ADD, EPOLLIN))
            fail("epoll_ctl");
    }
}

int main(int argc, char **argv)
{
    char *after = NULL;
    long port = argc == 2 ? strtol(argv[1], &after, 10) : 0;
    if (port < 1 || port > 65535 || *after != '\0') {
        fprintf(stderr, "usage: mock_upstream PORT\n");
        return 2;
    }
    prepare_replies();
    int listener = listen_on((uint16_t)port), epoll = epoll_create1(0);
    struct epoll_event first = {.events = EPOLLIN, .data.ptr = NULL}, events[EVENTS_PER_WAIT];
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &first) < 0)
        fail("epoll");
    for (;;) {
        int ready = epoll_wait(epoll, events, EVENTS_PER_WAIT, -1);
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if (c == NULL) {
                accept_all(epoll, listener);
            } else if (!serve(epoll, c)) {
                close(c->fd);
                free(c);
            }
        }
    }
}
