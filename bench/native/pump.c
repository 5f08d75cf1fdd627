/* A load generator that is no client: it sends requests that somebody else made and counts replies.
 *
 *   pump PROTOCOL REQUESTS --window UNITS [--seconds S [--rate R] | --until UNITS] [--latencies FILE] FD...
 *
 * The sockets are connected, and have said whatever a protocol wants to hear first, before this
 * program starts: it inherits them. REQUESTS is a file of requests one after the other, each
 * after four little-endian u32: bytes, units (records), replies that answer it, and a tag by which
 * its replies are known where they may come in another order (rabbit: the publisher, nats: the last
 * word of the inbox; 0: replies come in order).
 * Connection c of C sends the requests c, c+C, c+2C, ... of the file, with --seconds over and over
 * until time is up, else each once. A connection sends the next request while what it waits for
 * stays within the window, and always one.
 *
 * With --rate the loop is open: request n is due n/R seconds after the start, whatever became of
 * those before it, and goes to the next connection that has room. Its latency counts from the time
 * at which it was due, so that a server that stalls cannot hide those that it kept from being sent;
 * all that were due within the time are sent and waited for.
 *
 * PROTOCOL says how a reply is recognised: http, resp, nats, frames (u32 size, as Kafka), rabbit
 * (the same, confirms), rabbit-consume (deliveries, answered by a credit each, until --until), amqp
 * (0-9-1, confirms of one publish or of several), beanstalk (jobs that were inserted).
 *
 * One line of JSON says how much was answered within the time, and what this program needed of
 * the CPU itself: a generator that was busy all the time has measured itself. FILE gets the latency
 * of each request in microseconds, as little-endian u32.
 */
#include "common.h"

#include <sys/timerfd.h>

enum { SCRATCH = 1 << 20, HEAD_MAX = 64 << 10, IN_FLIGHT_MAX = 1 << 16, REFUSALS_MAX = 10000 };

typedef struct {
    int64_t sent_at;
    uint32_t request, missing;
} Waiting;

typedef struct {
    int fd;
    size_t next;          /* index of the request that is sent next */
    size_t done;          /* bytes of it that are sent */
    int sending;          /* a request is partly sent */
    int wants_out;
    uint64_t outstanding; /* units sent and not answered */
    Waiting *waiting;     /* ring of requests that wait for replies */
    uint32_t first, count;
    char head[HEAD_MAX];  /* what is collected of a reply */
    uint32_t have;
    uint64_t skip;        /* bytes that nobody looks at */
    uint64_t need;        /* resp: values that complete the reply */
    uint64_t settled;     /* amqp: every publish below is confirmed, counted from 1 */
    unsigned char *ahead; /* amqp: of those after it, which are confirmed; a ring */
} Connection;

static size_t connection_count;
static uint64_t refusals, answered, answered_in_time, received, replied, until_units, window_units = 1;
static int64_t started, deadline, last_reply;
static int once;
static double rate;               /* requests a second of an open loop; 0: closed */
static uint64_t begun, due_count; /* of an open loop: requests that were begun, and all of them */
static char *scratch;
static const char *rest;  /* what was received after the part that is looked at */
static size_t rest_size;
static const char *protocol;

static void finish(Waiting *one, Connection *c, int64_t at) {
    uint32_t units = requests[one->request].units;
    answered += units;
    c->outstanding -= units;
    int in_time = once || at <= deadline;
    if (in_time) answered_in_time += units;
    /* an open loop counts all that were due: who comes late is what it looks for */
    if ((in_time || rate) && latency_count < LATENCY_MAX) {
        latencies[latency_count++] = (at - one->sent_at) / 1000;
    }
}

/* So many replies have come on this connection, for the oldest requests that this tag fits. */
static void take_replies(Connection *c, uint64_t count, uint32_t tag) {
    int64_t at = now();
    last_reply = at;
    replied += count;
    for (uint32_t i = 0; count; i++) {
        if (i == c->count) fail("a reply that nobody waits for");
        Waiting *one = &c->waiting[(c->first + i) % IN_FLIGHT_MAX];
        uint32_t own = requests[one->request].tag;
        if (!one->missing || (own && own != tag)) continue;
        uint64_t some = count < one->missing ? count : one->missing;
        one->missing -= some;
        count -= some;
        if (!one->missing) finish(one, c, at);
    }
    while (c->count && !c->waiting[c->first].missing) {
        c->first = (c->first + 1) % IN_FLIGHT_MAX;
        c->count--;
    }
}

/* The server is too busy: as a client would, send the one request of this connection anew. */
static void send_again(Connection *c) {
    if (c->count != 1 || refusals++ > REFUSALS_MAX) fail("refused too often");
    c->outstanding -= requests[c->waiting[c->first].request].units;
    c->count = 0;
    c->next -= connection_count;
    last_reply = now();
    usleep(10000);
}

/* Each of these looks at the reply collected so far, and says how many bytes of it are its head
 * (0: more must come); what else belongs to it goes into skip. */

static uint32_t http_reply(Connection *c) {
    char *end = memmem(c->head, c->have, "\r\n\r\n", 4);
    if (!end) return 0;
    int refused = !memcmp(c->head + 9, "503", 3) || !memcmp(c->head + 9, "429", 3);
    if (c->head[9] != '2' && !refused) {
        fprintf(stderr, "pump: answered %.*s%.*s\n", (int)c->have, c->head, (int)(rest_size < 500 ? rest_size : 500), rest);
        exit(1);
    }
    *end = 0;
    char *length = strcasestr(c->head, "\r\ncontent-length:");
    if (length) c->skip = strtoull(length + 17, NULL, 10);
    else if (memcmp(c->head + 9, "204", 3)) fail("a reply of unknown length");
    if (refused) send_again(c);
    else take_replies(c, 1, 0);
    return end + 4 - c->head;
}

static uint32_t resp_reply(Connection *c) {
    char *end = memmem(c->head, c->have, "\r\n", 2);
    if (!end) return 0;
    if (!c->need) c->need = 1;
    long long number = strtoll(c->head + 1, NULL, 10);
    if (c->head[0] == '-') fail(c->head);
    if (c->head[0] == '*') c->need += number > 0 ? number : 0;
    if (c->head[0] == '$' && number >= 0) c->skip = number + 2;
    if (!--c->need) take_replies(c, 1, 0);
    return end + 2 - c->head;
}

static uint32_t nats_reply(Connection *c) {
    char *end = memmem(c->head, c->have, "\r\n", 2);
    if (!end) return 0;
    *end = 0;
    if (!memcmp(c->head, "MSG ", 4) || !memcmp(c->head, "HMSG", 4)) {
        static const char refused[] = "{\"error\"";
        char *word = strchr(c->head, ' ') + 1, *end_of_subject = word + strcspn(word, " ");
        for (char *at = word; at < end_of_subject; at++) {
            if (*at == '.') word = at + 1;
        }
        if (rest_size >= sizeof refused && !memcmp(rest, refused, sizeof refused - 1)) fail("NATS refuses");
        c->skip = strtoull(strrchr(c->head, ' ') + 1, NULL, 10) + 2;
        take_replies(c, 1, strtoul(word, NULL, 10));
    } else if (!strcmp(c->head, "PING")) {
        if (send(c->fd, "PONG\r\n", 6, MSG_NOSIGNAL) != 6) fail("no room for PONG");
    } else if (c->head[0] == '-') {
        fail(c->head);
    }
    return end + 2 - c->head;
}

static uint32_t frame_reply(Connection *c) {
    if (c->have < 4) return 0;
    c->skip = be32(c->head);
    take_replies(c, 1, 0);
    return 4;
}

static uint32_t rabbit_reply(Connection *c) {
    if (c->have < 8) return 0;
    uint32_t size = be32(c->head), key = be32(c->head + 4) >> 16;
    if (key == 3) { /* confirm: publisher u8, ids */
        if (c->have < 13) return 0;
        take_replies(c, be32(c->head + 9), (unsigned char)c->head[8]);
        c->skip = size - 9;
        return 13;
    }
    if (key == 8) { /* delivery: subscription u8, magic u8, kind u8, entries u16, records u32 */
        static const char credit[] = {0, 0, 0, 7, 0, 9, 0, 1, 0, 0, 1};
        if (c->have < 17) return 0;
        answered += be32(c->head + 13);
        answered_in_time = answered;
        last_reply = now();
        replied++;
        if (send(c->fd, credit, sizeof credit, MSG_NOSIGNAL) != sizeof credit) fail("no room for credit");
        c->skip = size - 13;
        return 17;
    }
    if (key == 4) fail("a publish error");
    if (key == 22) fail("the server closes");
    c->skip = size - 4;
    return 8;
}

/* amqp: a confirm names one publish, or all up to one; how many of them are new? */
static uint64_t newly_confirmed(Connection *c, uint64_t tag, int all_up_to) {
    uint64_t count = 0;
    if (tag < c->settled || tag - c->settled >= IN_FLIGHT_MAX) fail("a confirm of nothing that was sent");
    if (all_up_to) {
        for (; c->settled <= tag; c->settled++) {
            count += !c->ahead[c->settled % IN_FLIGHT_MAX];
            c->ahead[c->settled % IN_FLIGHT_MAX] = 0;
        }
    } else {
        c->ahead[tag % IN_FLIGHT_MAX] = 1;
        count = 1;
    }
    for (; c->ahead[c->settled % IN_FLIGHT_MAX]; c->settled++) c->ahead[c->settled % IN_FLIGHT_MAX] = 0;
    return count;
}

static uint32_t amqp_reply(Connection *c) {
    if (c->have < 7) return 0;
    uint32_t size = be32(c->head + 3);
    if (c->head[0] != 1) { /* a heartbeat: nothing else comes to who does not consume */
        c->skip = size + 1;
        return 7;
    }
    if (c->have < 11) return 0;
    uint32_t method = be32(c->head + 7);
    if (method != (60 << 16 | 80)) fail("AMQP: something else than a confirm");
    if (c->have < 21) return 0;
    take_replies(c, newly_confirmed(c, be64(c->head + 11), c->head[19]), 0);
    return 21;
}

static uint32_t beanstalk_reply(Connection *c) {
    char *end = memmem(c->head, c->have, "\r\n", 2);
    if (!end) return 0;
    *end = 0;
    if (strncmp(c->head, "INSERTED ", 9)) fail(c->head);
    take_replies(c, 1, 0);
    return end + 2 - c->head;
}

static uint32_t take_head(Connection *c) {
    switch (protocol[0]) {
    case 'a': return amqp_reply(c);
    case 'b': return beanstalk_reply(c);
    case 'h': return http_reply(c);
    case 'n': return nats_reply(c);
    case 'f': return frame_reply(c);
    case 'r': return protocol[1] == 'e' ? resp_reply(c) : rabbit_reply(c);
    default: fail("unknown protocol"); return 0;
    }
}

static void receive(Connection *c) {
    for (;;) {
        ssize_t got = recv(c->fd, scratch, SCRATCH, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (got <= 0) fail("the server hung up");
        received += got;
        char *at = scratch, *end = scratch + got;
        while (at < end) {
            if (c->skip) {
                uint64_t some = c->skip < (uint64_t)(end - at) ? c->skip : (uint64_t)(end - at);
                c->skip -= some;
                at += some;
                continue;
            }
            uint32_t had = c->have, room = HEAD_MAX - 1 - had;
            uint32_t some = room < end - at ? room : end - at;
            /* heads are small: copy little, so that large bodies are stepped over where they lie */
            if (some > 256) some = 256;
            memcpy(c->head + had, at, some);
            c->have += some;
            c->head[c->have] = 0;
            rest = at + some;
            rest_size = end - rest;
            uint32_t used = take_head(c);
            if (used) {
                at += used - had;
                c->have = 0;
            } else {
                at += some;
                if (!room) fail("a head without end");
            }
        }
        if (got < SCRATCH) return;
    }
}

static int has_room(Connection *c) {
    if (c->sending || c->count == IN_FLIGHT_MAX) return 0;
    return !c->outstanding || c->outstanding + requests[c->next % request_count].units <= window_units;
}

static void begin(Connection *c, int64_t at) {
    Request *r = &requests[c->next % request_count];
    uint32_t slot = (c->first + c->count++) % IN_FLIGHT_MAX;
    c->waiting[slot] = (Waiting){at, c->next % request_count, r->replies};
    c->outstanding += r->units;
    c->sending = 1;
    c->done = 0;
}

/* Sends what is begun; a closed loop goes on beginning while there is room. */
static void transmit(Connection *c, int poll_fd) {
    int blocked = 0;
    while (!blocked) {
        if (!c->sending) {
            if (rate || !request_count) break;
            if (once ? c->next >= request_count : now() >= deadline) break;
            if (!has_room(c)) break;
            begin(c, now());
        }
        Request *r = &requests[c->next % request_count];
        ssize_t put = send(c->fd, r->bytes + c->done, r->size - c->done, MSG_NOSIGNAL);
        if (put < 0 && errno != EAGAIN) fail("cannot send");
        if (put > 0) c->done += put;
        if (c->done == r->size) {
            c->sending = 0;
            c->next += connection_count;
        } else {
            blocked = 1;
        }
    }
    if (blocked != c->wants_out) {
        struct epoll_event event = {EPOLLIN | (blocked ? EPOLLOUT : 0), {.ptr = c}};
        epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &event);
        c->wants_out = blocked;
    }
}

static int64_t due(uint64_t number) {
    return started + (int64_t)(number * 1e9 / rate);
}

/* Begins what is due, on one connection after the other, and sets the clock for what is due next. */
static void begin_due(Connection *connections, int poll_fd, int clock_fd) {
    static size_t turn;
    while (begun < due_count && due(begun) <= now()) {
        size_t tried = 0;
        while (tried < connection_count && !has_room(&connections[(turn + tried) % connection_count])) tried++;
        if (tried == connection_count) return; /* a reply makes room */
        Connection *c = &connections[(turn + tried) % connection_count];
        turn += tried + 1;
        begin(c, due(begun++));
        transmit(c, poll_fd);
    }
    if (begun == due_count) return;
    int64_t at = due(begun);
    struct itimerspec when = {{0, 0}, {at / 1000000000, at % 1000000000}};
    if (timerfd_settime(clock_fd, TFD_TIMER_ABSTIME, &when, NULL)) fail("the clock cannot be set");
}

int main(int argc, char **argv) {
    double seconds = 0;
    const char *kept = NULL;
    int at = 3;
    if (argc < 4) fail("usage: pump PROTOCOL REQUESTS [--window U] [--seconds S [--rate R] | --until U] [--latencies FILE] FD...");
    protocol = argv[1];
    load(argv[2]);
    for (; at + 1 < argc && argv[at][0] == '-'; at += 2) {
        if (!strcmp(argv[at], "--window")) window_units = strtoull(argv[at + 1], NULL, 10);
        else if (!strcmp(argv[at], "--seconds")) seconds = atof(argv[at + 1]);
        else if (!strcmp(argv[at], "--until")) until_units = strtoull(argv[at + 1], NULL, 10);
        else if (!strcmp(argv[at], "--rate")) rate = atof(argv[at + 1]);
        else if (!strcmp(argv[at], "--latencies")) kept = argv[at + 1];
        else fail(argv[at]);
    }
    connection_count = argc - at;
    once = seconds == 0;
    if (rate < 0 || (rate && (once || !request_count))) fail("a rate needs seconds and requests");
    due_count = rate * seconds;
    scratch = malloc(SCRATCH);
    latencies = malloc(LATENCY_MAX * sizeof *latencies);
    Connection *connections = calloc(connection_count, sizeof *connections);
    int poll_fd = epoll_create1(0);
    for (size_t i = 0; i < connection_count; i++) {
        Connection *c = &connections[i];
        c->fd = atoi(argv[at + i]);
        c->next = i;
        c->waiting = malloc(IN_FLIGHT_MAX * sizeof *c->waiting);
        c->settled = 1;
        c->ahead = calloc(IN_FLIGHT_MAX, 1);
        fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK);
        struct epoll_event event = {EPOLLIN, {.ptr = c}};
        if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &event)) fail("not a socket");
    }
    int clock_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event ticks = {EPOLLIN, {.ptr = NULL}};
    if (clock_fd < 0 || epoll_ctl(poll_fd, EPOLL_CTL_ADD, clock_fd, &ticks)) fail("no clock");
    started = last_reply = now();
    deadline = started + (int64_t)(seconds * 1e9);
    for (size_t i = 0; i < connection_count; i++) transmit(&connections[i], poll_fd);
    for (;;) {
        if (rate) begin_due(connections, poll_fd, clock_fd);
        uint64_t open = 0;
        int64_t at_now = now();
        for (size_t i = 0; i < connection_count; i++) open += connections[i].count;
        int ended = rate ? begun == due_count : once || at_now >= deadline;
        if (until_units ? answered >= until_units : !open && ended) break;
        if (at_now > (once ? last_reply : deadline) + DRAIN_NS) fail("no reply for half a minute");
        struct epoll_event events[256];
        int found = epoll_wait(poll_fd, events, 256, 1000);
        for (int i = 0; i < found; i++) {
            Connection *c = events[i].data.ptr;
            if (!c) {
                uint64_t expired;
                if (read(clock_fd, &expired, sizeof expired) < 0 && errno != EAGAIN) fail("the clock stopped");
                continue;
            }
            if (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP)) receive(c);
            transmit(c, poll_fd);
        }
    }
    double span = once ? (last_reply - started) / 1e9 : seconds;
    if (kept) keep_latencies(kept);
    printf("{\"seconds\": %.6f, \"units\": %lu, \"units_all\": %lu, \"replies\": %lu, \"received\": %lu, "
           "\"cpu\": %.3f, \"requests\": %zu, \"refusals\": %lu}\n",
           span, answered_in_time, answered, replied, received,
           cpu_seconds(),
           latency_count, refusals);
    return 0;
}
