/* The least that a server can do which keeps what it is sent: the yardstick of the ingest rows.
 *
 *   reference null|os|fsync DIRECTORY
 *
 * One thread: reads requests of HTTP as the rows send them (a head with Content-Length, a body), and
 * for each body computes CRC-32C, appends 64 bytes of header and the body to a file, and answers
 * 204. All requests that came in one turn, those of one connection among them, share one write of
 * answers a connection; with fsync their bodies share one fdatasync before the answers; with
 * null nothing is computed or written, which shows what the generator itself is good for. The file
 * starts anew after 512 MiB. Prints its port. It knows no streams, offsets, validation or recovery.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <nmmintrin.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <signal.h>
#include <unistd.h>

enum { ROOM = 20 << 20, FILE_MAX = 512 << 20, MANY = 64 };

typedef struct Connection {
    int fd;
    size_t have, head, body;     /* bytes in the buffer; of the request's head and body once known */
    struct Connection *next;     /* of those that wait for the sync */
    uint32_t waits;              /* requests that are kept and not answered */
    char *buffer;
} Connection;

static int file = -1;
static size_t file_size;
static const char *directory;
static int keeps, syncs;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint32_t crc32c(const char *at, size_t size) {
    uint64_t crc = 0xffffffff;
    for (; size >= 8; at += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    for (; size; at++, size--) crc = _mm_crc32_u8((uint32_t)crc, (unsigned char)*at);
    return ~(uint32_t)crc;
}

static void begin_file(void) {
    char path[4096];
    if (file >= 0) close(file);
    snprintf(path, sizeof path, "%s/reference.log", directory);
    unlink(path);
    file = open(path, O_CREAT | O_WRONLY | O_APPEND, 0600);
    if (file < 0) fail(path);
    file_size = 0;
}

static void keep(const char *body, size_t size) {
    if (!keeps) return;
    char header[64] = {0};
    uint32_t crc = crc32c(body, size);
    memcpy(header, &size, 8);
    memcpy(header + 8, &crc, 4);
    if (file < 0 || file_size > FILE_MAX) begin_file();
    struct iovec parts[2] = {{header, sizeof header}, {(char *)body, size}};
    if (writev(file, parts, 2) != (ssize_t)(size + sizeof header)) fail("writev");
    file_size += size + sizeof header;
}

static void answer(Connection *c) {
    static const char text[] = "HTTP/1.1 204 No Content\r\n\r\n";
    static char texts[MANY * (sizeof text - 1)];
    if (!*texts) {
        for (int i = 0; i < MANY; i++) memcpy(texts + i * (sizeof text - 1), text, sizeof text - 1);
    }
    ssize_t size = c->waits * (sizeof text - 1);
    if (send(c->fd, texts, size, MSG_NOSIGNAL) != size) fail("send");
    c->waits = 0;
}

/* True if a whole request lies in the buffer. */
static int whole(Connection *c) {
    if (!c->head) {
        char *end = memmem(c->buffer, c->have, "\r\n\r\n", 4);
        if (!end) return 0;
        c->head = end + 4 - c->buffer;
        *end = 0;
        char *length = strcasestr(c->buffer, "\r\ncontent-length:");
        c->body = length ? strtoull(length + 17, NULL, 10) : 0;
        if (c->head + c->body > ROOM) {
            fprintf(stderr, "too large\n");
            exit(1);
        }
    }
    return c->have >= c->head + c->body;
}

/* Keeps every whole request of the buffer and moves the rest to its front. A sender may have MANY
 * under way: with more of them the rest would lie here until it sends again. */
static void take(Connection *c) {
    char *begin = c->buffer;
    size_t all = c->have, used = 0;
    while (c->waits < MANY && whole(c)) {
        keep(c->buffer + c->head, c->body);
        size_t size = c->head + c->body;
        used += size;
        c->buffer += size;
        c->have -= size;
        c->head = c->body = 0;
        c->waits++;
    }
    c->buffer = begin;
    if (used) memmove(begin, begin + used, all - used);
}

/* Returns -1 when the peer has gone. */
static int receive(Connection *c) {
    while (c->have < ROOM) {
        ssize_t got = recv(c->fd, c->buffer + c->have, ROOM - c->have, 0);
        if (got < 0 && errno == EAGAIN) break;
        if (got <= 0) return -1;
        c->have += got;
        if (whole(c)) break;
    }
    return 0;
}

static int listen_on_loopback(void) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1024)) fail("listen");
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

static void welcome(int listener, int poll_fd) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        Connection *c = calloc(1, sizeof *c);
        c->fd = fd;
        c->buffer = malloc(ROOM);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = {EPOLLIN, {.ptr = c}};
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event);
    }
}

static void part_with(Connection *c) {
    close(c->fd);
    free(c->buffer);
    free(c);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: reference null|os|fsync DIRECTORY\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    keeps = strcmp(argv[1], "null") != 0;
    syncs = strcmp(argv[1], "fsync") == 0;
    directory = argv[2];
    int poll_fd = epoll_create1(0), listener = listen_on_loopback();
    struct epoll_event listening = {EPOLLIN, {.ptr = NULL}};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &listening);
    for (;;) {
        struct epoll_event events[256];
        Connection *waiting = NULL;
        int found = epoll_wait(poll_fd, events, 256, -1);
        for (int i = 0; i < found; i++) {
            Connection *c = events[i].data.ptr;
            if (!c) {
                welcome(listener, poll_fd);
            } else if (receive(c)) {
                part_with(c);
            } else {
                take(c);
                if (!c->waits) continue;
                c->next = waiting;
                waiting = c;
            }
        }
        if (waiting && syncs && fdatasync(file)) fail("fdatasync");
        for (Connection *c = waiting, *next; c; c = next) {
            next = c->next;
            answer(c);
        }
    }
}
