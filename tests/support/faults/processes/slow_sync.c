/* Syncs that take their time: a library for LD_PRELOAD.

   The file that SLOW_SYNC names holds a number of milliseconds, for which every fsync and fdatasync waits before it does
   its work.  A smaller number shortens the waits under way. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const volatile long *delay_ms;

__attribute__((constructor)) static void prepare(void) {
    const char *path = getenv("SLOW_SYNC");
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    void *mapped = mmap(NULL, sizeof *delay_ms, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED)
        delay_ms = mapped;
}

static void take_time(void) {
    const struct timespec piece = {0, 1000000};
    struct timespec begun, now;
    if (delay_ms == NULL)
        return;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        if (*delay_ms <= 0)
            return;
        nanosleep(&piece, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000 < *delay_ms);
}

int fsync(int fd) {
    int (*next)(int) = dlsym(RTLD_NEXT, "fsync");
    take_time();
    return next(fd);
}

int fdatasync(int fd) {
    int (*next)(int) = dlsym(RTLD_NEXT, "fdatasync");
    take_time();
    return next(fd);
}
