/* Records what a process does to the files of one directory; preloaded, so that it sees a library's calls too.
 *
 * RECORD_DIR   absolute path of the directory
 * RECORD_LOG   where the calls are written, one after the other, each when it has returned
 * RECORD_FAIL  calls that fail instead, by their numbers from 1: "sync 7,19 write 120"; of a write that is
 *              to come "short 30", the first half is written
 *
 * A call in the log: kind (1 byte), failed (1), length of the name (2), position (8), length of the
 * data (4), all little-endian; then the name within the directory, and the data.
 * Kinds: C created, W written, T cut, S synced, U unlinked, R renamed (data: the new name).
 * A failed write or cut did nothing; of a failed sync nobody knows.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define FD_COUNT 1024

static char *names[FD_COUNT];
static int log_fd = -1;
static const char *directory;
static size_t directory_length;
static long sync_count, write_count;

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static void begin(void) {
    if (directory) return;
    directory = getenv("RECORD_DIR");
    directory_length = strlen(directory);
    int (*real_open)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
    log_fd = real_open(getenv("RECORD_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log_fd < 0) abort();
}

/* The name within the directory; NULL of what lies elsewhere, "" of the directory itself. */
static const char *within(const char *path) {
    begin();
    if (strncmp(path, directory, directory_length) != 0) return NULL;
    if (path[directory_length] == 0) return path + directory_length;
    return path[directory_length] == '/' ? path + directory_length + 1 : NULL;
}

static const char *known(int fd) { return fd >= 0 && fd < FD_COUNT ? names[fd] : NULL; }

static void put(const void *data, size_t size) {
    ssize_t (*real_write)(int, const void *, size_t) =
        (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    if (size && real_write(log_fd, data, size) != (ssize_t)size) abort();
}

static void note(char kind, int failed, const char *name, int64_t position, const void *data, uint32_t size) {
    int saved = errno;
    uint16_t name_size = strlen(name);
    char head[16];
    head[0] = kind;
    head[1] = failed != 0;
    memcpy(head + 2, &name_size, 2);
    memcpy(head + 4, &position, 8);
    memcpy(head + 12, &size, 4);
    put(head, sizeof head);
    put(name, name_size);
    put(data, size);
    errno = saved;
}

static int is_to_fail(const char *kind, long number) {
    const char *list = getenv("RECORD_FAIL");
    const char *at = list ? strstr(list, kind) : NULL;
    if (!at) return 0;
    at += strlen(kind);
    while (*at == ' ' || *at == ',') {
        char *end;
        if (strtol(at + 1, &end, 10) == number) return 1;
        if (end == at + 1) return 0;
        at = end;
    }
    return 0;
}

static int opened(int fd, const char *path, int existed, int flags) {
    if (fd < 0 || fd >= FD_COUNT) return fd;
    const char *name = within(path);
    free(names[fd]);
    names[fd] = name ? strdup(name) : NULL;
    if (name && (flags & O_CREAT) && !existed) note('C', 0, name, 0, NULL, 0);
    return fd;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list list; \
        va_start(list, flags); \
        int mode = va_arg(list, int); \
        va_end(list); \
        REAL(int, #name, const char *, int, ...); \
        int existed = access(path, F_OK) == 0; \
        return opened(real(path, flags, mode), path, existed, flags); \
    }
OPEN(open)
OPEN(open64)

int close(int fd) {
    REAL(int, "close", int);
    if (known(fd)) {
        free(names[fd]);
        names[fd] = NULL;
    }
    return real(fd);
}

static ssize_t refuse(const char *name, int64_t position) {
    errno = ENOSPC;
    note('W', 1, name, position, NULL, 0);
    return -1;
}

/* How many bytes of a write are to be written: fewer where it is to come short. */
static size_t allowed(size_t size) {
    return size > 1 && is_to_fail("short", write_count) ? size / 2 : size;
}

#define PWRITE(name, offset) \
    ssize_t name(int fd, const void *data, size_t size, offset position) { \
        REAL(ssize_t, #name, int, const void *, size_t, offset); \
        if (!known(fd)) return real(fd, data, size, position); \
        if (is_to_fail("write", ++write_count)) return refuse(known(fd), position); \
        ssize_t done = real(fd, data, allowed(size), position); \
        if (done > 0) note('W', 0, known(fd), position, data, done); \
        return done; \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

static void note_parts(const char *name, const struct iovec *parts, int count, int64_t position, ssize_t left) {
    for (int i = 0; i < count && left > 0; i++) {
        size_t size = parts[i].iov_len < (size_t)left ? parts[i].iov_len : (size_t)left;
        note('W', 0, name, position, parts[i].iov_base, size);
        position += size;
        left -= size;
    }
}

#define PWRITEV(name, offset) \
    ssize_t name(int fd, const struct iovec *parts, int count, offset position) { \
        REAL(ssize_t, #name, int, const struct iovec *, int, offset); \
        if (!known(fd)) return real(fd, parts, count, position); \
        if (is_to_fail("write", ++write_count)) return refuse(known(fd), position); \
        ssize_t done = real(fd, parts, allowed(count), position); \
        note_parts(known(fd), parts, count, position, done); \
        return done; \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

#define PWRITEV2(name, offset) \
    ssize_t name(int fd, const struct iovec *parts, int count, offset position, int flags) { \
        REAL(ssize_t, #name, int, const struct iovec *, int, offset, int); \
        if (!known(fd)) return real(fd, parts, count, position, flags); \
        if (is_to_fail("write", ++write_count)) return refuse(known(fd), position); \
        ssize_t done = real(fd, parts, allowed(count), position, flags); \
        note_parts(known(fd), parts, count, position, done); \
        return done; \
    }
PWRITEV2(pwritev2, off_t)
PWRITEV2(pwritev64v2, off64_t)

/* At the end of what is there: only files that are appended to are written so. */
ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    if (!known(fd)) return real(fd, data, size);
    int64_t position = lseek(fd, 0, SEEK_CUR);
    ssize_t done = real(fd, data, size);
    if (done > 0) note('W', 0, known(fd), position, data, done);
    return done;
}

#define CUT(name, offset) \
    int name(int fd, offset size) { \
        REAL(int, #name, int, offset); \
        int failed = real(fd, size); \
        if (known(fd)) note('T', failed, known(fd), size, NULL, 0); \
        return failed; \
    }
CUT(ftruncate, off_t)
CUT(ftruncate64, off64_t)

#define SYNC(name) \
    int name(int fd) { \
        REAL(int, #name, int); \
        if (!known(fd)) return real(fd); \
        int failed = is_to_fail("sync", ++sync_count) ? (errno = EIO, -1) : real(fd); \
        note('S', failed, known(fd), 0, NULL, 0); \
        return failed; \
    }
SYNC(fsync)
SYNC(fdatasync)

int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    int failed = real(path);
    const char *name = within(path);
    if (name && !failed) note('U', 0, name, 0, NULL, 0);
    return failed;
}

int rename(const char *old, const char *fresh) {
    REAL(int, "rename", const char *, const char *);
    int failed = real(old, fresh);
    const char *from = within(old), *to = within(fresh);
    if (from && to && !failed) note('R', 0, from, 0, to, strlen(to));
    return failed;
}
