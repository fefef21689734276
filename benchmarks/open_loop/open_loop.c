/*
 * Open-loop load: requests leave at a constant rate, whether or not earlier ones have been answered.
 *
 *   open_loop PORT TEMPLATE RATE SECONDS WARM_UP_SECONDS DISTINCT MAX_CONNECTIONS
 *
 * One thread, epoll, HTTP/1.1 keep-alive to 127.0.0.1. TEMPLATE is a file with one request, in which "{session}" and
 * "{number}#" are replaced by nine digits: the request's number (modulo DISTINCT unless that is 0), and that modulo 256.
 * A request takes a connection that is free, else a new one; with MAX_CONNECTIONS in use it waits for one. Its latency
 * counts from the moment at which it was due, so neither waiting here nor a slow generator can hide (coordinated
 * omission). Requests of the warm-up are sent and not counted.
 *
 * Prints one line of JSON. "due": requests that were counted; "answered": of them with status 200; "refused": with
 * another; "broken": whose connection ended or could not be opened; "unanswered": not whole when patience ended.
 * Percentiles, in microseconds, are over all but the broken; an unanswered one counts with the time it had. "first": until
 * the first byte of the body. "late": by how much this program itself came round after a request was due.
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
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define HEAD_BYTES 16384
#define READ_BYTES 65536
#define EVENTS_PER_WAIT 256
#define NANOSECONDS 1000000000LL
#define PATIENCE (5 * NANOSECONDS)
#define DIGITS 9

enum phase { CONNECTING, IDLE, SENDING, HEAD, BODY, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, UNTIL_CLOSE };

struct connection {
    int fd;
    enum phase phase;
    long request; /* -1: none */
    size_t sent, head_size, line_size;
    long long left;
    bool keep, waits_for_room;
    char *text, head[HEAD_BYTES + 1], line[32];
};

/* One moment per request, in nanoseconds after it was due; 0: not yet. */
struct outcome {
    long long first, whole;
    bool refused, broken;
};

static struct sockaddr_in address;
static char *template;
static size_t template_size, session_at, number_at;
static long total, warm_up, distinct, dispatched, open_connections, most_connections, outstanding;
static long long begin, rate;
static struct connection **idle;
static long idle_count, max_connections, *waiting, waiting_head, waiting_tail;
static struct outcome *outcomes;
static long long *late;
static int epoll;

static void fail(const char *what)
{
    fprintf(stderr, "open_loop: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void *room(size_t count, size_t size)
{
    void *got = calloc(count > 0 ? count : 1, size);
    if (got == NULL)
        fail("out of memory");
    return got;
}

static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * NANOSECONDS + t.tv_nsec;
}

static long long due(long request)
{
    return begin + request * NANOSECONDS / rate;
}

static void load_template(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) < 0)
        fail(path);
    template_size = (size_t)ftell(file);
    rewind(file);
    template = room(template_size + 1, 1);
    if (fread(template, 1, template_size, file) != template_size)
        fail(path);
    fclose(file);
    char *session = strstr(template, "{session}"), *number = strstr(template, "{number}#");
    if (session == NULL || number == NULL) {
        fprintf(stderr, "open_loop: %s lacks {session} or {number}#\n", path);
        exit(1);
    }
    session_at = (size_t)(session - template);
    number_at = (size_t)(number - template);
}

static void watch(struct connection *c, int operation, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = c};
    if (epoll_ctl(epoll, operation, c->fd, &event) < 0)
        fail("epoll_ctl");
}

static void drop(struct connection *c)
{
    if (c->request >= 0) {
        outcomes[c->request].broken = true;
        outstanding--;
    }
    for (long i = 0; i < idle_count; i++)
        if (idle[i] == c)
            idle[i] = idle[--idle_count];
    close(c->fd);
    free(c->text);
    free(c);
    open_connections--;
}

static void write_digits(char *into, long value)
{
    for (int i = DIGITS - 1; i >= 0; i--, value /= 10)
        into[i] = (char)('0' + value % 10);
}

/* Write as much of the request as fits. False: the connection is gone. */
static bool send_request(struct connection *c)
{
    while (c->sent < template_size) {
        ssize_t sent = send(c->fd, c->text + c->sent, template_size - c->sent, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            if (!c->waits_for_room)
                watch(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
            c->waits_for_room = true;
            return true;
        }
        if (sent < 0)
            return false;
        c->sent += (size_t)sent;
    }
    if (c->waits_for_room)
        watch(c, EPOLL_CTL_MOD, EPOLLIN);
    c->waits_for_room = false;
    c->phase = HEAD;
    c->head_size = 0;
    return true;
}

static void prepare(struct connection *c, long request)
{
    long number = distinct > 0 ? request % distinct : request;
    c->request = request;
    c->sent = 0;
    write_digits(c->text + session_at, number % 256);
    write_digits(c->text + number_at, number);
}

static bool start(struct connection *c, long request)
{
    prepare(c, request);
    c->phase = SENDING;
    return send_request(c);
}

static void open_connection(long request)
{
    int yes = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd < 0)
        fail("socket");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    struct connection *c = room(1, sizeof *c);
    c->fd = fd;
    c->text = room(template_size, 1);
    memcpy(c->text, template, template_size);
    prepare(c, request);
    c->phase = CONNECTING;
    c->waits_for_room = true;
    if (++open_connections > most_connections)
        most_connections = open_connections;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0 && errno != EINPROGRESS) {
        drop(c);
        return;
    }
    watch(c, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
}

static void dispatch(long request)
{
    outstanding++;
    while (idle_count > 0) {
        struct connection *c = idle[--idle_count];
        if (start(c, request))
            return;
        c->request = -1;
        drop(c);
    }
    if (open_connections < max_connections)
        open_connection(request);
    else
        waiting[waiting_tail++] = request;
}

/* The answer is whole: count it, and let the connection take what waits. False: close it. */
static bool finish(struct connection *c)
{
    outcomes[c->request].whole = now() - due(c->request);
    c->request = -1;
    outstanding--;
    if (!c->keep)
        return false;
    c->phase = IDLE;
    if (waiting_head < waiting_tail)
        return start(c, waiting[waiting_head++]);
    idle[idle_count++] = c;
    return true;
}

static bool read_head(struct connection *c)
{
    c->head[c->head_size] = '\0';
    bool chunked = false, sized = false;
    c->keep = strncmp(c->head, "HTTP/1.1 ", 9) == 0;
    if (strncmp(c->head, "HTTP/1.", 7) != 0)
        return false;
    outcomes[c->request].refused = strtol(c->head + 9, NULL, 10) != 200;
    c->left = 0;
    for (char *line = strstr(c->head, "\r\n"); line != NULL; line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, "content-length:", 15) == 0) {
            c->left = strtoll(line + 15, NULL, 10);
            sized = true;
        } else if (strncasecmp(line, "transfer-encoding: chunked", 26) == 0) {
            chunked = true;
        } else if (strncasecmp(line, "connection: close", 17) == 0) {
            c->keep = false;
        }
    }
    c->phase = chunked ? CHUNK_SIZE : sized ? BODY : UNTIL_CLOSE;
    c->keep = c->keep && c->phase != UNTIL_CLOSE;
    c->line_size = 0;
    return true;
}

/* Take a line of the chunked framing, which may come in pieces. Returns 1 once it is whole, 0 before, -1 for nonsense. */
static int take_line(struct connection *c, const char **at, const char *end)
{
    while (*at < end) {
        char byte = *(*at)++;
        if (byte == '\n') {
            c->line[c->line_size] = '\0';
            return 1;
        }
        if (byte == '\r')
            continue;
        if (c->line_size == sizeof c->line - 1)
            return -1;
        c->line[c->line_size++] = byte;
    }
    return 0;
}

static void mark_first(struct connection *c)
{
    if (outcomes[c->request].first == 0)
        outcomes[c->request].first = now() - due(c->request);
}

static const char *take_head(struct connection *c, const char *at, const char *end)
{
    while (at < end && c->head_size < HEAD_BYTES) {
        c->head[c->head_size++] = *at++;
        if (c->head_size >= 4 && memcmp(c->head + c->head_size - 4, "\r\n\r\n", 4) == 0)
            return read_head(c) ? at : NULL;
    }
    return c->head_size == HEAD_BYTES ? NULL : at;
}

static const char *skip(struct connection *c, const char *at, const char *end)
{
    long long here = end - at < c->left ? end - at : c->left;
    c->left -= here;
    return at + here;
}

static bool take_framing(struct connection *c, const char **at, const char *end)
{
    int taken = take_line(c, at, end);
    if (taken < 1)
        return taken == 0;
    if (c->phase == CHUNK_SIZE) {
        c->left = strtoll(c->line, NULL, 16);
        c->phase = c->left > 0 ? CHUNK : TRAILER;
    } else if (c->phase == CHUNK_END) {
        c->phase = CHUNK_SIZE;
    } else if (c->line_size == 0) {
        return finish(c);
    }
    c->line_size = 0;
    return true;
}

/* Take what came. False: close the connection. */
static bool take(struct connection *c, const char *at, const char *end)
{
    while (at < end) {
        if (c->request < 0)
            return false; /* bytes that nobody asked for */
        switch (c->phase) {
        case HEAD:
            if ((at = take_head(c, at, end)) == NULL)
                return false;
            if (c->phase == BODY && c->left == 0 && !finish(c))
                return false;
            break;
        case BODY:
        case CHUNK:
            mark_first(c);
            at = skip(c, at, end);
            if (c->left > 0)
                break;
            if (c->phase == CHUNK)
                c->phase = CHUNK_END;
            else if (!finish(c))
                return false;
            break;
        case CHUNK_SIZE:
        case CHUNK_END:
        case TRAILER:
            if (!take_framing(c, &at, end))
                return false;
            break;
        case UNTIL_CLOSE:
            mark_first(c);
            at = end;
            break;
        default:
            return false;
        }
    }
    return true;
}

static bool serve(struct connection *c, uint32_t events)
{
    static char buffer[READ_BYTES];

    if (c->phase == CONNECTING) {
        int problem = 0;
        socklen_t size = sizeof problem;
        if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &problem, &size) < 0 || problem != 0)
            return false;
        c->phase = SENDING;
    }
    if (c->phase == SENDING && (events & EPOLLOUT) && !send_request(c))
        return false;
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        return true;
    ssize_t got = recv(c->fd, buffer, sizeof buffer, 0);
    if (got < 0)
        return errno == EAGAIN;
    if (got == 0) {
        if (c->phase == UNTIL_CLOSE)
            finish(c);
        return false;
    }
    return take(c, buffer, buffer + got);
}

static void close_or_keep(struct connection *c, bool keep)
{
    if (keep)
        return;
    drop(c);
    if (waiting_head < waiting_tail && open_connections < max_connections)
        open_connection(waiting[waiting_head++]);
}

static void arm(int timer)
{
    long long at = dispatched < total ? due(dispatched) : now() + NANOSECONDS / 10;
    struct itimerspec when = {.it_value = {.tv_sec = at / NANOSECONDS, .tv_nsec = at % NANOSECONDS}};
    if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL) < 0)
        fail("timerfd_settime");
}

static void dispatch_due(void)
{
    for (long long moment = now(); dispatched < total && due(dispatched) <= moment; moment = now()) {
        late[dispatched] = moment - due(dispatched);
        dispatch(dispatched++);
    }
}

static void run(void)
{
    struct epoll_event events[EVENTS_PER_WAIT], timing = {.events = EPOLLIN, .data.ptr = NULL};
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    if (timer < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &timing) < 0)
        fail("timerfd");
    begin = now() + NANOSECONDS / 100;
    long long end = due(total) + PATIENCE;
    while ((dispatched < total || outstanding > 0) && now() < end) {
        arm(timer);
        int ready = epoll_wait(epoll, events, EVENTS_PER_WAIT, -1);
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            uint64_t ticks;
            if (c != NULL)
                close_or_keep(c, serve(c, events[i].events));
            else if (read(timer, &ticks, sizeof ticks) < 0 && errno != EAGAIN)
                fail("timer");
        }
        dispatch_due();
    }
}

static int compare(const void *left, const void *right)
{
    long long a = *(const long long *)left, b = *(const long long *)right;
    return a < b ? -1 : a > b;
}

static void print_percentiles(const char *name, long long *values, long count)
{
    static const struct {
        const char *name;
        double share;
    } wanted[] = {{"p50", 0.5}, {"p95", 0.95}, {"p99", 0.99}, {"p999", 0.999}};

    qsort(values, (size_t)count, sizeof *values, compare);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        long at = (long)(wanted[i].share * (double)count);
        printf(",\"%s_%s_us\":%.1f", name, wanted[i].name,
               count > 0 ? (double)values[at < count ? at : count - 1] / 1e3 : 0.0);
    }
}

static void report(void)
{
    long answered = 0, refused = 0, broken = 0, unanswered = 0, seen = 0;
    long long *whole = room((size_t)total, sizeof *whole), *first = room((size_t)total, sizeof *first);
    long long end = now(), last = begin;

    for (long i = warm_up; i < total; i++) {
        struct outcome *o = &outcomes[i];
        if (o->broken) {
            broken++;
            continue;
        }
        unanswered += o->whole == 0;
        refused += o->whole > 0 && o->refused;
        answered += o->whole > 0 && !o->refused;
        if (o->whole > 0 && due(i) + o->whole > last)
            last = due(i) + o->whole;
        whole[seen] = o->whole > 0 ? o->whole : end - due(i);
        first[seen] = o->first > 0 ? o->first : whole[seen];
        seen++;
    }
    printf("{\"due\":%ld,\"seconds\":%.6f,\"answered\":%ld,\"refused\":%ld,\"broken\":%ld,\"unanswered\":%ld,"
           "\"connections\":%ld",
           total - warm_up, (double)(last - due(warm_up)) / 1e9, answered, refused, broken, unanswered,
           most_connections);
    print_percentiles("whole", whole, seen);
    print_percentiles("first", first, seen);
    print_percentiles("late", late + warm_up, dispatched - warm_up);
    printf("}\n");
}

static long positive(const char *text)
{
    char *after;
    long value = strtol(text, &after, 10);
    if (*after != '\0' || value < 0) {
        fprintf(stderr, "open_loop: %s is not a whole number\n", text);
        exit(2);
    }
    return value;
}

int main(int argc, char **argv)
{
    if (argc != 8) {
        fprintf(stderr, "usage: open_loop PORT TEMPLATE RATE SECONDS WARM_UP_SECONDS DISTINCT MAX_CONNECTIONS\n");
        return 2;
    }
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)positive(argv[1]));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    load_template(argv[2]);
    rate = positive(argv[3]) > 0 ? positive(argv[3]) : 1;
    warm_up = rate * positive(argv[5]);
    total = warm_up + rate * positive(argv[4]);
    distinct = positive(argv[6]);
    max_connections = positive(argv[7]);
    idle = room((size_t)max_connections, sizeof *idle);
    waiting = room((size_t)total, sizeof *waiting);
    outcomes = room((size_t)total, sizeof *outcomes);
    late = room((size_t)total, sizeof *late);
    epoll = epoll_create1(0);
    run();
    report();
    return 0;
}
