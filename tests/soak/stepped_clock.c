/* The wall clock of one member's processes, shifted by what a file says; preloaded (ld.so(8)).
 *
 * What a process reads is shifted, and so is what it waits for: a wait until a wall time is told anew every tenth of a
 * second, as the kernel tells its own when the clock steps (timer_settime(2), "clock_was_set"). Nothing else moves:
 * neither CLOCK_MONOTONIC nor CLOCK_BOOTTIME. Python and librdkafka read and wait by what is here, and by nothing else
 * that goes by the wall clock (nm -D tells).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000L
#define SLICE (SECOND / 10)
#define SINCE_BOOT 1000000000L /* seconds: no machine is up for as long, so a lower time is the monotonic clock's */

struct shared {
    long step;  /* nanoseconds that the wall clock is ahead */
    long reads; /* how often somebody has read a clock that was */
};
static struct shared unmoved;
static struct shared *shared = &unmoved;

static void *real(const char *name, const char *version) {
    void *found = dlvsym(RTLD_NEXT, name, version); /* dlsym(3) may find an older one of several */
    return found ? found : dlsym(RTLD_NEXT, name);
}

static int read_clock(clockid_t clock, struct timespec *at) {
    static int (*ask)(clockid_t, struct timespec *);
    if (!ask) ask = real("clock_gettime", "GLIBC_2.17");
    return ask(clock, at);
}

static struct timespec moved(struct timespec at, long by) {
    long nanoseconds = at.tv_nsec + by % SECOND;
    at.tv_sec += by / SECOND + (nanoseconds >= SECOND) - (nanoseconds < 0);
    at.tv_nsec = (nanoseconds + SECOND) % SECOND;
    return at;
}

static int before(struct timespec one, struct timespec other) {
    return one.tv_sec != other.tv_sec ? one.tv_sec < other.tv_sec : one.tv_nsec < other.tv_nsec;
}

__attribute__((constructor)) static void find_file(void) {
    const char *directory = getenv("STEPPED_CLOCKS"), *member = getenv("KUNICORN_AUDIT_MEMBER");
    char path[4096];
    if (!directory || !member || snprintf(path, sizeof path, "%s/%s", directory, member) >= (int)sizeof path) return;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof *shared)) return;
    void *mapped = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) shared = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = read_clock(clock, at);
    if (failed || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) || !shared->step) return failed;
    __atomic_add_fetch(&shared->reads, 1, __ATOMIC_RELAXED);
    *at = moved(*at, shared->step);
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *at = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *at, int base) {
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, at) ? base : 0;
}

/* The next moment of the kernel's wall clock at which to look whether `until`, a moment of ours, has come. */
static struct timespec next_look(const struct timespec *until) {
    struct timespec now, ours = moved(*until, -shared->step);
    read_clock(CLOCK_REALTIME, &now);
    struct timespec slice = moved(now, SLICE);
    return before(ours, slice) ? ours : slice;
}

static int has_come(const struct timespec *until) {
    struct timespec now;
    read_clock(CLOCK_REALTIME, &now);
    return !before(moved(now, shared->step), *until);
}

/* A wait that ends before its time is spurious: both standards let it be so, and callers look at what they wait for. */

int pthread_cond_timedwait(pthread_cond_t *restrict it, pthread_mutex_t *restrict held,
                           const struct timespec *restrict until) {
    static int (*wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!wait) wait = real("pthread_cond_timedwait", "GLIBC_2.3.2");
    if (until->tv_sec < SINCE_BOOT) return wait(it, held, until);
    struct timespec look = next_look(until);
    int ended = wait(it, held, &look);
    return ended == ETIMEDOUT && !has_come(until) ? 0 : ended;
}

int cnd_timedwait(cnd_t *restrict it, mtx_t *restrict held, const struct timespec *restrict until) {
    static int (*wait)(cnd_t *, mtx_t *, const struct timespec *);
    if (!wait) wait = real("cnd_timedwait", "GLIBC_2.28");
    struct timespec look = next_look(until);
    int ended = wait(it, held, &look);
    return ended == thrd_timedout && !has_come(until) ? thrd_success : ended;
}
