/* System calls that fail on request: a library for LD_PRELOAD.

   The file that FAILING_CALLS names is a table of one row a call, see `failing_calls.py`.  Only files below the
   directory FAILING_BELOW are concerned, and connections by TCP.  A row with `times` other than 0 lets `after` calls
   pass, and then has as many calls fail with `error`, or all when it is negative.  A write with `error` 0 is a short
   one, of half of its bytes, and so is a send; a receive gets one byte.  Reads and writes of connections count as
   receives and sends. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum call { OPEN, WRITE, PWRITE, WRITEV, READ, PREAD, FSYNC, FDATASYNC, FTRUNCATE, RENAME, UNLINK, MMAP, MSYNC, ACCEPT, RECEIVE, SEND, CALLS };

struct row {
    long after, times, error, failed;
};

#define MAX_FDS 65536

static struct row *rows;
static const char *below;
static size_t below_length;
enum kind { OTHER, OURS, CONNECTION }; /* OURS: a file below the directory */
static char concerns[MAX_FDS];

__attribute__((constructor)) static void prepare(void) {
    const char *path = getenv("FAILING_CALLS");
    below = getenv("FAILING_BELOW");
    if (path == NULL || below == NULL)
        return;
    below_length = strlen(below);
    int (*real_open)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    void *(*real_mmap)(void *, size_t, int, int, int, off_t) = dlsym(RTLD_NEXT, "mmap");
    int fd = real_open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *found = real_mmap(NULL, CALLS * sizeof(struct row), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (found != MAP_FAILED)
        rows = found;
    close(fd);
}

/* Whether this call is to fail; `errno` is set then, to 0 for a short write. */
static int fails(enum call call) {
    struct row *row = rows + call;
    if (rows == NULL || __atomic_load_n(&row->times, __ATOMIC_ACQUIRE) == 0)
        return 0;
    if (__atomic_fetch_sub(&row->after, 1, __ATOMIC_ACQ_REL) > 0)
        return 0;
    long times = __atomic_load_n(&row->times, __ATOMIC_ACQUIRE);
    do {
        if (times == 0)
            return 0;
    } while (times > 0 && !__atomic_compare_exchange_n(&row->times, &times, times - 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    __atomic_fetch_add(&row->failed, 1, __ATOMIC_ACQ_REL);
    errno = (int)row->error;
    return 1;
}

static int is_below(const char *path) {
    return path != NULL && below != NULL && strncmp(path, below, below_length) == 0;
}

static int is_concerned(int fd) {
    return fd >= 0 && fd < MAX_FDS && concerns[fd] == OURS;
}

static int is_connection(int fd) {
    return fd >= 0 && fd < MAX_FDS && concerns[fd] == CONNECTION;
}

static int fails_for(int fd, enum call of_file, enum call of_connection) {
    return is_concerned(fd) ? fails(of_file) : is_connection(fd) && fails(of_connection);
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (real == NULL) \
        real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int opened(int fd, enum kind kind) {
    if (fd >= 0 && fd < MAX_FDS)
        concerns[fd] = (char)kind;
    return fd;
}

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = va_arg(more, mode_t); \
        va_end(more); \
        int is_ours = is_below(path); \
        return is_ours && fails(OPEN) ? -1 : opened(real(path, flags, mode), is_ours ? OURS : OTHER); \
    }
#define OPENS_AT(name) \
    int name(int directory, const char *path, int flags, ...) { \
        REAL(name); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = va_arg(more, mode_t); \
        va_end(more); \
        int is_ours = is_below(path); \
        return is_ours && fails(OPEN) ? -1 : opened(real(directory, path, flags, mode), is_ours ? OURS : OTHER); \
    }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)

int close(int fd) {
    REAL(close);
    if (fd >= 0 && fd < MAX_FDS)
        concerns[fd] = OTHER;
    return real(fd);
}

#define IF_CONCERNED(call, fd) \
    if (is_concerned(fd) && fails(call)) \
    return -1

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    if (fails_for(fd, WRITE, SEND)) {
        if (errno != 0)
            return -1;
        size = (size + 1) / 2;
    }
    return real(fd, data, size);
}

#define PWRITES(name, offset) \
    ssize_t name(int fd, const void *data, size_t size, offset at) { \
        REAL(name); \
        if (is_concerned(fd) && fails(PWRITE)) { \
            if (errno != 0) \
                return -1; \
            size = (size + 1) / 2; \
        } \
        return real(fd, data, size, at); \
    }
PWRITES(pwrite, off_t)
PWRITES(pwrite64, off64_t)

ssize_t writev(int fd, const struct iovec *pieces, int count) {
    REAL(writev);
    if (fails_for(fd, WRITEV, SEND)) {
        if (errno != 0)
            return -1;
        count = (count + 1) / 2;
    }
    return real(fd, pieces, count);
}

#define CALL(kind, name, call, parameters, fd, ...) \
    kind name parameters { \
        REAL(name); \
        IF_CONCERNED(call, fd); \
        return real(__VA_ARGS__); \
    }
ssize_t read(int fd, void *data, size_t size) {
    REAL(read);
    if (fails_for(fd, READ, RECEIVE)) {
        if (errno != 0)
            return -1;
        size = size > 0;
    }
    return real(fd, data, size);
}

CALL(ssize_t, pread, PREAD, (int fd, void *data, size_t size, off_t at), fd, fd, data, size, at)
CALL(ssize_t, pread64, PREAD, (int fd, void *data, size_t size, off64_t at), fd, fd, data, size, at)
CALL(int, fsync, FSYNC, (int fd), fd, fd)
CALL(int, fdatasync, FDATASYNC, (int fd), fd, fd)
CALL(int, ftruncate, FTRUNCATE, (int fd, off_t size), fd, fd, size)
CALL(int, ftruncate64, FTRUNCATE, (int fd, off64_t size), fd, fd, size)

#define MAPS(name, offset) \
    void *name(void *place, size_t size, int protection, int flags, int fd, offset at) { \
        REAL(name); \
        return is_concerned(fd) && fails(MMAP) ? MAP_FAILED : real(place, size, protection, flags, fd, at); \
    }
MAPS(mmap, off_t)
MAPS(mmap64, off64_t)

int msync(void *place, size_t size, int flags) {
    REAL(msync);
    return fails(MSYNC) ? -1 : real(place, size, flags);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    return is_below(to) && fails(RENAME) ? -1 : real(from, to);
}

int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    REAL(renameat);
    return is_below(to) && fails(RENAME) ? -1 : real(from_directory, from, to_directory, to);
}

int unlink(const char *path) {
    REAL(unlink);
    return is_below(path) && fails(UNLINK) ? -1 : real(path);
}

int unlinkat(int directory, const char *path, int flags) {
    REAL(unlinkat);
    return is_below(path) && fails(UNLINK) ? -1 : real(directory, path, flags);
}

int accept(int fd, struct sockaddr *restrict address, socklen_t *restrict length) {
    REAL(accept);
    return fails(ACCEPT) ? -1 : opened(real(fd, address, length), CONNECTION);
}

int accept4(int fd, struct sockaddr *restrict address, socklen_t *restrict length, int flags) {
    REAL(accept4);
    return fails(ACCEPT) ? -1 : opened(real(fd, address, length, flags), CONNECTION);
}

int connect(int fd, const struct sockaddr *address, socklen_t length) {
    REAL(connect);
    if (address->sa_family == AF_INET)
        opened(fd, CONNECTION);
    return real(fd, address, length);
}

ssize_t recv(int fd, void *data, size_t size, int flags) {
    REAL(recv);
    if (is_connection(fd) && fails(RECEIVE)) {
        if (errno != 0)
            return -1;
        size = size > 0;
    }
    return real(fd, data, size, flags);
}

ssize_t send(int fd, const void *data, size_t size, int flags) {
    REAL(send);
    if (is_connection(fd) && fails(SEND)) {
        if (errno != 0)
            return -1;
        size = (size + 1) / 2;
    }
    return real(fd, data, size, flags);
}
