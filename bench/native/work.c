/* Workers of queues that are no clients: each publishes, takes as much, acknowledges it, and begins anew.
 *
 *   work PROTOCOL REQUESTS (--seconds S | --cycles N) [--latencies FILE] FD...
 *
 * Sockets and REQUESTS are as for pump. Connection c has three requests of the file, 3c and the next
 * two: what it publishes (replies: how many confirm it), what it takes with (units: how many messages;
 * of no bytes: the server pushes them), and what an acknowledgement begins with:
 *
 *   http       the head of the request up to the length of its body, which names the receipts
 *   resp       commands of a line each, to which the ids of the entries are added: their words so far
 *   amqp       nothing: one frame acknowledges all up to the last delivery, and is not answered
 *   nats       nothing: each message says where its acknowledgement goes, which is not answered
 *   beanstalk  nothing: each job is deleted
 *
 * A worker that took nothing takes again. All published first and took then, so that there is always
 * something for whoever takes. A unit is a message that was acknowledged; a latency is that of a whole
 * cycle, from the publish to the answer of the acknowledgement (where none comes: until it was sent).
 */
#include "common.h"

enum { TOKEN_SIZE = 256, TOKENS_MAX = 1024 };

typedef enum { PUBLISHING, TAKING, ACKNOWLEDGING, DONE } Phase;

typedef struct {
    char *bytes;
    size_t size, room;
} Buffer;

typedef struct {
    int fd;
    Request *publish, *take, *ack;
    Phase phase;
    uint64_t missing; /* replies that the phase waits for */
    int64_t began;
    Buffer in, out;
    size_t sent;
    int wants_out;
    char tokens[TOKENS_MAX][TOKEN_SIZE]; /* what the messages that are held are acknowledged by */
    size_t token_count;
    uint64_t body_left; /* amqp: bytes of a delivery that are still to come */
    uint64_t delivery;  /* amqp: its tag */
    uint64_t published; /* amqp: before this cycle */
    char confirmed[TOKENS_MAX]; /* amqp: which of this cycle are */
} Worker;

static const char *protocol;
static uint64_t acknowledged, acknowledged_in_time, received, replied, cycles, cycles_max;
static int64_t started, deadline, last_reply;
static int poll_fd;

static void room_for(Buffer *b, size_t more) {
    if (b->size + more <= b->room) return;
    b->room = 2 * (b->size + more);
    b->bytes = realloc(b->bytes, b->room);
    if (!b->bytes) fail("no memory");
}

static void add(Buffer *b, const char *bytes, size_t size) {
    room_for(b, size);
    memcpy(b->bytes + b->size, bytes, size);
    b->size += size;
}

static void add_text(Buffer *b, const char *text) {
    add(b, text, strlen(text));
}

static void hold(Worker *w, const char *token, size_t size) {
    if (w->token_count == TOKENS_MAX || size >= TOKEN_SIZE) fail("more is given out than was asked for");
    memcpy(w->tokens[w->token_count], token, size);
    w->tokens[w->token_count++][size] = 0;
}

static void answered(Worker *w, uint64_t count) {
    if (w->missing < count) fail("a reply that nobody waits for");
    w->missing -= count;
    replied += count;
}

/* Each of these looks at what has come of one answer, and says how many bytes it has; 0: more must come. */

static size_t http_answer(Worker *w, char *at, size_t size) {
    static const char mark[] = "\"receipt\":\"";
    char *end = memmem(at, size, "\r\n\r\n", 4);
    if (!end) return 0;
    *end = 0;
    char *length = strcasestr(at, "\r\ncontent-length:");
    uint64_t body = length ? strtoull(length + 17, NULL, 10) : 0;
    *end = '\r';
    end += 4;
    if ((size_t)(at + size - end) < body) return 0;
    if (at[9] != '2') {
        fprintf(stderr, "work: answered %.*s\n", (int)(end - at + (body < 500 ? body : 500)), at);
        exit(1);
    }
    char *from = end, *last = end + body;
    while (w->phase == TAKING && (from = memmem(from, last - from, mark, sizeof mark - 1))) {
        from += sizeof mark - 1;
        char *quote = memchr(from, '"', last - from);
        if (!quote) fail("a receipt without end");
        hold(w, from, quote - from);
        from = quote;
    }
    answered(w, 1);
    return last - at;
}

/* The end of a value of RESP; NULL: more must come. Entries of a stream have their ids first, at depth 4. */
static char *resp_value(Worker *w, char *at, char *end, int depth, int is_first) {
    char *line = memmem(at, end - at, "\r\n", 2);
    if (!line) return NULL;
    long long number = strtoll(at + 1, NULL, 10);
    char *next = line + 2;
    if (*at == '-') fail("the server refuses");
    if (*at == '$') {
        if (number < 0) return next;
        if (end - next < number + 2) return NULL;
        if (w && depth == 4 && is_first) hold(w, next, number);
        return next + number + 2;
    }
    for (long long i = 0; *at == '*' && i < number; i++) {
        if (!(next = resp_value(w, next, end, depth + 1, i == 0))) return NULL;
    }
    return next;
}

static size_t resp_answer(Worker *w, char *at, size_t size) {
    char *end = resp_value(NULL, at, at + size, 0, 0);
    if (!end) return 0;
    if (w->phase == TAKING) resp_value(w, at, at + size, 0, 0);
    answered(w, 1);
    return end - at;
}

static size_t nats_answer(Worker *w, char *at, size_t size) {
    char *line = memmem(at, size, "\r\n", 2);
    if (!line) return 0;
    int with_headers = !strncmp(at, "HMSG", 4);
    if (!strncmp(at, "PING", 4)) add_text(&w->out, "PONG\r\n");
    if (*at == '-') fail(at);
    if (strncmp(at, "MSG ", 4) && !with_headers) return line + 2 - at;
    char *word[6] = {0}, *from = at, *saved = NULL;
    char head[1024];
    if (line - at >= (long)sizeof head) fail("a line without end");
    memcpy(head, at, line - at);
    head[line - at] = 0;
    int words = 0;
    for (from = strtok_r(head, " ", &saved); from && words < 6; from = strtok_r(NULL, " ", &saved)) word[words++] = from;
    uint64_t content = strtoull(word[words - 1], NULL, 10) + 2;
    if ((uint64_t)(at + size - line - 2) < content) return 0;
    if (words == (with_headers ? 6 : 5)) {
        hold(w, word[3], strlen(word[3]));
        if (w->phase == TAKING && w->missing) answered(w, 1);
    } else if (with_headers) {
        if (w->phase == TAKING) w->missing = 0; /* the pull has ended early */
    } else {
        if (!strncmp(line + 2, "{\"error\"", 8)) fail("NATS refuses");
        answered(w, 1);
    }
    return line + 2 + content - at;
}

static size_t beanstalk_answer(Worker *w, char *at, size_t size) {
    char *line = memmem(at, size, "\r\n", 2);
    if (!line) return 0;
    size_t used = line + 2 - at;
    if (!strncmp(at, "RESERVED ", 9)) {
        char *blank = memchr(at + 9, ' ', line - at - 9);
        uint64_t content = strtoull(blank, NULL, 10) + 2;
        if (size - used < content) return 0;
        used += content;
        hold(w, at + 9, blank - at - 9);
    } else if (strncmp(at, "INSERTED ", 9) && strncmp(at, "DELETED", 7) && strncmp(at, "TIMED_OUT", 9)) {
        fail(at);
    }
    answered(w, 1);
    return used;
}

static size_t amqp_answer(Worker *w, char *at, size_t size) {
    if (size < 7) return 0;
    uint32_t content = be32(at + 3);
    if (size < content + 8u) return 0;
    if (*at == 2) w->body_left = be64(at + 11);
    if (*at == 3) w->body_left -= content;
    if ((*at == 2 || *at == 3) && !w->body_left) { /* a message is whole */
        char tag[32];
        hold(w, tag, sprintf(tag, "%lu", (unsigned long)w->delivery));
        if (w->phase == TAKING && w->missing) answered(w, 1);
    }
    if (*at == 1) {
        uint32_t method = be32(at + 7);
        if (method == (60 << 16 | 80)) { /* a confirm: one, or all up to one; in any order */
            uint64_t last = be64(at + 11) - w->published - 1;
            if (last >= w->publish->replies) fail("a confirm of nothing that was sent");
            for (uint64_t i = at[19] ? 0 : last; i <= last; i++) {
                answered(w, !w->confirmed[i]);
                w->confirmed[i] = 1;
            }
        } else if (method == (60 << 16 | 60)) { /* a delivery: the consumer's tag, then its own */
            w->delivery = be64(at + 12 + (unsigned char)at[11]);
        } else if (method == (60 << 16 | 71)) { /* what was got */
            w->delivery = be64(at + 11);
        } else if (method == (60 << 16 | 72)) { /* there was nothing */
            answered(w, 1);
        } else {
            fail("AMQP: something else than confirms and messages");
        }
    }
    return content + 8;
}

static void acknowledge_http(Worker *w) {
    char length[64];
    size_t size = 13 + w->token_count - 1 + 2;
    for (size_t i = 0; i < w->token_count; i++) size += 2 + strlen(w->tokens[i]);
    add(&w->out, w->ack->bytes, w->ack->size);
    sprintf(length, "%zu\r\n\r\n{\"receipts\":[", size);
    add_text(&w->out, length);
    for (size_t i = 0; i < w->token_count; i++) {
        add_text(&w->out, i ? ",\"" : "\"");
        add_text(&w->out, w->tokens[i]);
        add_text(&w->out, "\"");
    }
    add_text(&w->out, "]}");
    w->missing = 1;
}

static void acknowledge_resp(Worker *w) {
    const char *at = w->ack->bytes, *end = at + w->ack->size;
    char text[TOKEN_SIZE + 32];
    while (at < end) {
        const char *line = memchr(at, '\n', end - at);
        int words = 1;
        for (const char *each = at; each < line; each++) words += *each == ' ';
        sprintf(text, "*%zu\r\n", words + w->token_count);
        add_text(&w->out, text);
        while (at < line) {
            const char *blank = memchr(at, ' ', line - at);
            size_t size = (blank ? blank : line) - at;
            sprintf(text, "$%zu\r\n%.*s\r\n", size, (int)size, at);
            add_text(&w->out, text);
            at += size + 1;
        }
        for (size_t i = 0; i < w->token_count; i++) {
            sprintf(text, "$%zu\r\n%s\r\n", strlen(w->tokens[i]), w->tokens[i]);
            add_text(&w->out, text);
        }
        at = line + 1;
        w->missing++;
    }
}

static void acknowledge_each(Worker *w) {
    char text[TOKEN_SIZE + 64];
    for (size_t i = 0; i < w->token_count; i++) {
        sprintf(text, *protocol == 'n' ? "PUB %s 4\r\n+ACK\r\n" : "delete %s\r\n", w->tokens[i]);
        add_text(&w->out, text);
    }
    w->missing = *protocol == 'n' ? 0 : w->token_count;
}

static void acknowledge_amqp(Worker *w) {
    char frame[21] = {1, 0, 1, 0, 0, 0, 13, 0, 60, 0, 80};
    uint64_t tag = strtoull(w->tokens[w->token_count - 1], NULL, 10);
    for (int i = 0; i < 8; i++) frame[11 + i] = tag >> (56 - 8 * i);
    frame[19] = 1;
    frame[20] = (char)0xce;
    add(&w->out, frame, sizeof frame);
}

static size_t take_answer(Worker *w, char *at, size_t size) {
    switch (*protocol) {
    case 'h': return http_answer(w, at, size);
    case 'r': return resp_answer(w, at, size);
    case 'n': return nats_answer(w, at, size);
    case 'b': return beanstalk_answer(w, at, size);
    case 'a': return amqp_answer(w, at, size);
    default: fail("unknown protocol"); return 0;
    }
}

static void acknowledge(Worker *w) {
    switch (*protocol) {
    case 'h': acknowledge_http(w); break;
    case 'r': acknowledge_resp(w); break;
    case 'a': acknowledge_amqp(w); break;
    default: acknowledge_each(w);
    }
    w->phase = ACKNOWLEDGING;
}

static void transmit(Worker *w) {
    while (w->sent < w->out.size) {
        ssize_t put = send(w->fd, w->out.bytes + w->sent, w->out.size - w->sent, MSG_NOSIGNAL);
        if (put < 0 && errno != EAGAIN) fail("cannot send");
        if (put < 0) break;
        w->sent += put;
    }
    int blocked = w->sent < w->out.size;
    if (!blocked) w->sent = w->out.size = 0;
    if (blocked != w->wants_out) {
        struct epoll_event event = {EPOLLIN | (blocked ? EPOLLOUT : 0), {.ptr = w}};
        epoll_ctl(poll_fd, EPOLL_CTL_MOD, w->fd, &event);
        w->wants_out = blocked;
    }
}

/* What the server goes on pushing to one who has ended is for the others. */
static void leave(Worker *w) {
    transmit(w);
    w->out.size = 0;
    if (epoll_ctl(poll_fd, EPOLL_CTL_DEL, w->fd, NULL) || shutdown(w->fd, SHUT_RDWR)) fail("cannot leave");
}

static void publish(Worker *w) {
    int64_t at = now();
    if (cycles_max ? cycles >= cycles_max : at >= deadline) {
        w->phase = DONE;
        if (!w->take->size) leave(w);
        return;
    }
    cycles++;
    w->began = at;
    w->phase = PUBLISHING;
    w->missing = w->publish->replies;
    add(&w->out, w->publish->bytes, w->publish->size);
}

static void take(Worker *w) {
    w->phase = TAKING;
    add(&w->out, w->take->bytes, w->take->size);
    /* what was pushed while it published counts */
    w->missing = w->take->size ? w->take->replies : w->take->units - w->token_count;
}

static void end_cycle(Worker *w) {
    int64_t at = now();
    acknowledged += w->token_count;
    if (cycles_max || at <= deadline) {
        acknowledged_in_time += w->token_count;
        if (latency_count < LATENCY_MAX) latencies[latency_count++] = (at - w->began) / 1000;
    }
    w->token_count = 0;
    w->published += w->publish->replies;
    memset(w->confirmed, 0, sizeof w->confirmed);
    publish(w);
}

/* Goes on as far as it can without another answer. */
static void step(Worker *w) {
    while (w->phase != DONE && !w->missing) {
        if (w->phase == PUBLISHING) take(w);
        else if (w->phase == TAKING && !w->token_count) take(w);
        else if (w->phase == TAKING) acknowledge(w);
        else end_cycle(w);
    }
}

static void receive(Worker *w) {
    room_for(&w->in, 1 << 18);
    ssize_t got = recv(w->fd, w->in.bytes + w->in.size, w->in.room - w->in.size - 1, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) fail("the server hung up");
    received += got;
    last_reply = now();
    w->in.size += got;
    w->in.bytes[w->in.size] = 0;
    size_t used = 0, some;
    while (used < w->in.size && (some = take_answer(w, w->in.bytes + used, w->in.size - used))) {
        used += some;
        step(w);
    }
    memmove(w->in.bytes, w->in.bytes + used, w->in.size - used);
    w->in.size -= used;
}

int main(int argc, char **argv) {
    double seconds = 0;
    const char *kept = NULL;
    int at = 3;
    if (argc < 4) fail("usage: work PROTOCOL REQUESTS (--seconds S | --cycles N) [--latencies FILE] FD...");
    protocol = argv[1];
    load(argv[2]);
    for (; at + 1 < argc && argv[at][0] == '-'; at += 2) {
        if (!strcmp(argv[at], "--seconds")) seconds = atof(argv[at + 1]);
        else if (!strcmp(argv[at], "--cycles")) cycles_max = strtoull(argv[at + 1], NULL, 10);
        else if (!strcmp(argv[at], "--latencies")) kept = argv[at + 1];
        else fail(argv[at]);
    }
    size_t count = argc - at;
    if (request_count != 3 * count) fail("each connection has three requests");
    for (size_t i = 0; i < request_count; i++) {
        if (requests[i].replies > TOKENS_MAX || requests[i].units > TOKENS_MAX) fail("too many at once");
    }
    if (!seconds == !cycles_max) fail("either for so long, or so many cycles");
    latencies = malloc(LATENCY_MAX * sizeof *latencies);
    Worker *workers = calloc(count, sizeof *workers);
    poll_fd = epoll_create1(0);
    started = last_reply = now();
    deadline = started + (int64_t)(seconds * 1e9);
    for (size_t i = 0; i < count; i++) {
        Worker *w = &workers[i];
        *w = (Worker){.fd = atoi(argv[at + i]), .publish = &requests[3 * i], .take = &requests[3 * i + 1], .ack = &requests[3 * i + 2]};
        fcntl(w->fd, F_SETFL, fcntl(w->fd, F_GETFL) | O_NONBLOCK);
        struct epoll_event event = {EPOLLIN, {.ptr = w}};
        if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, w->fd, &event)) fail("not a socket");
        publish(w);
        transmit(w);
    }
    for (;;) {
        size_t open = 0;
        for (size_t i = 0; i < count; i++) open += workers[i].phase != DONE || workers[i].out.size;
        if (!open) break;
        if (now() > (deadline > last_reply ? deadline : last_reply) + DRAIN_NS) fail("no reply for half a minute");
        struct epoll_event events[256];
        int found = epoll_wait(poll_fd, events, 256, 1000);
        for (int i = 0; i < found; i++) {
            Worker *w = events[i].data.ptr;
            if (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP)) receive(w);
            if (w->out.size) transmit(w);
        }
    }
    if (kept) keep_latencies(kept);
    printf("{\"seconds\": %.6f, \"units\": %lu, \"units_all\": %lu, \"replies\": %lu, \"received\": %lu, "
           "\"cpu\": %.3f, \"requests\": %zu, \"refusals\": 0}\n",
           cycles_max ? (now() - started) / 1e9 : seconds, acknowledged_in_time, acknowledged, replied, received,
           cpu_seconds(), latency_count);
    return 0;
}
