/* What the load generators share: the file of requests, the clock, latencies, and how they fail. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LATENCY_MAX = 1 << 22 };
#define DRAIN_NS 30000000000ll

typedef struct {
    const char *bytes;
    uint32_t size, units, replies, tag;
} Request;

static Request *requests;
static size_t request_count;
static uint32_t *latencies;
static size_t latency_count;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, what);
    exit(1);
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static uint32_t be32(const char *at) {
    const unsigned char *b = (const unsigned char *)at;
    return (uint32_t)b[0] << 24 | b[1] << 16 | b[2] << 8 | b[3];
}

static uint64_t be64(const char *at) {
    return (uint64_t)be32(at) << 32 | be32(at + 4);
}

static void load(const char *path) {
    int fd = open(path, O_RDONLY);
    struct stat found;
    if (fd < 0 || fstat(fd, &found)) fail("no requests");
    if (!found.st_size) return;
    char *at = mmap(NULL, found.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (at == MAP_FAILED) fail("mmap");
    char *end = at + found.st_size;
    size_t room = 0;
    while (at < end) {
        uint32_t numbers[4];
        memcpy(numbers, at, sizeof numbers);
        if (request_count == room) {
            room = room ? 2 * room : 1024;
            requests = realloc(requests, room * sizeof *requests);
        }
        requests[request_count++] = (Request){at + 16, numbers[0], numbers[1], numbers[2], numbers[3]};
        at += 16 + numbers[0];
    }
    close(fd);
}

static void keep_latencies(const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    size_t size = latency_count * sizeof *latencies, done = 0;
    while (fd >= 0 && done < size) {
        ssize_t put = write(fd, (char *)latencies + done, size - done);
        if (put <= 0) fail("cannot keep the latencies");
        done += put;
    }
    if (fd < 0 || close(fd)) fail("cannot keep the latencies");
}

static double cpu_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}
