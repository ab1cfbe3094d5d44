/* A disk that fails on demand, for LD_PRELOAD: the tests compile it when they run.
 *
 * It looks at the writes, syncs, truncations and renames of files below FAULTS_DIR.
 *
 * FAULTS_SWITCH names a file. While it is there, calls are counted, and the fault in it happens. It holds "AT MODE ERRNO":
 *   once       call number AT (from 1) fails
 *   from       it fails, and so does every later one
 *   short      a write stops in the middle; other calls fail
 *   done       it is carried out, and fails
 *   done-from  it is carried out, and fails; later ones only fail
 *   count      nothing fails
 * When the file is written anew, counting begins anew.
 *
 * FAULTS_LOG names a file that gets a line for each call counted.
 *
 * FAULTS_RECORD names a file that gets each call as it is carried out: a byte for the kind ('w' write, 'd' write that is
 * synced at once, 's' sync, 't' truncation, 'r' rename), then path and, for 'r', new path (u32 length, bytes), for 'w'
 * and 'd' offset and length (u64) and the bytes, for 't' the length (u64). Little-endian machines only.
 *
 * FAULTS_CLOCK_SECONDS is added to the time of day.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };
enum fate { PASS, FAIL, SHORTEN, DO_AND_FAIL };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long counted;
static struct timespec switched;
static ino_t switch_inode;
static long fault_at;
static char fault_mode[16];
static int fault_errno;

static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static ssize_t (*real_pwrite)(int, const void *, size_t, off64_t);
static ssize_t (*real_pwritev)(int, const struct iovec *, int, off64_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_ftruncate)(int, off64_t);
static int (*real_rename)(const char *, const char *);
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void find(void) {
    real_write = dlsym(RTLD_NEXT, "write");
    real_writev = dlsym(RTLD_NEXT, "writev");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_pwritev = dlsym(RTLD_NEXT, "pwritev64");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
    real_rename = dlsym(RTLD_NEXT, "rename");
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
}

static int is_watched(const char *path) {
    const char *dir = getenv("FAULTS_DIR");
    return dir && strncmp(path, dir, strlen(dir)) == 0;
}

/* The path of a descriptor, if it lies below the directory. */
static int watched(int fd, char path[PATH_BYTES]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_BYTES - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_watched(path);
}

static void append(const char *variable, const void *bytes, size_t count) {
    const char *path = getenv(variable);
    if (!path) return;
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return;
    while (count > 0) {
        ssize_t done = real_write(fd, bytes, count);
        if (done <= 0) break;
        bytes = (const char *)bytes + done;
        count -= (size_t)done;
    }
    close(fd);
}

/* Counts a call, and says what becomes of it. */
static enum fate decide(const char *name, const char *path) {
    const char *file = getenv("FAULTS_SWITCH");
    struct stat stat_now;
    if (!file || stat(file, &stat_now) != 0) return PASS;
    if (stat_now.st_ino != switch_inode || stat_now.st_mtim.tv_sec != switched.tv_sec ||
        stat_now.st_mtim.tv_nsec != switched.tv_nsec) {
        FILE *content = fopen(file, "r");
        if (!content) return PASS;
        fault_at = 0;
        fault_errno = EIO;
        fault_mode[0] = 0;
        if (fscanf(content, "%ld %15s %d", &fault_at, fault_mode, &fault_errno) < 1) fault_at = 0;
        fclose(content);
        switch_inode = stat_now.st_ino;
        switched = stat_now.st_mtim;
        counted = 0;
    }
    counted++;
    enum fate fate = PASS;
    if (strcmp(fault_mode, "from") == 0 && counted >= fault_at) fate = FAIL;
    if (strcmp(fault_mode, "done-from") == 0 && counted > fault_at) fate = FAIL;
    if (strncmp(fault_mode, "done", 4) == 0 && counted == fault_at) fate = DO_AND_FAIL;
    if (strcmp(fault_mode, "once") == 0 && counted == fault_at) fate = FAIL;
    if (strcmp(fault_mode, "short") == 0 && counted == fault_at) fate = SHORTEN;
    char line[PATH_BYTES + 64];
    const char *base = strrchr(path, '/');
    int length = snprintf(line, sizeof line, "%ld %s %s %d\n", counted, name, base ? base + 1 : path, fate);
    append("FAULTS_LOG", line, (size_t)length);
    return fate;
}

/* One record: kind, paths, numbers, bytes. */
static void record(char kind, const char *path, const char *to, const uint64_t *numbers, int count, const void *bytes,
                   size_t length) {
    if (!getenv("FAULTS_RECORD")) return;
    size_t size = 1 + 2 * (4 + PATH_BYTES) + 16 + length, at = 0;
    char *all = malloc(size);
    if (!all) abort();
    all[at++] = kind;
    for (int which = 0; which < 2; which++) {
        const char *text = which ? to : path;
        if (!text) continue;
        uint32_t text_length = (uint32_t)strlen(text);
        memcpy(all + at, &text_length, 4);
        memcpy(all + at + 4, text, text_length);
        at += 4 + text_length;
    }
    memcpy(all + at, numbers, 8 * (size_t)count);
    at += 8 * (size_t)count;
    if (length) memcpy(all + at, bytes, length);
    append("FAULTS_RECORD", all, at + length);
    free(all);
}

static void record_write(int fd, const char *path, off64_t offset, const void *bytes, size_t length) {
    uint64_t numbers[2] = {(uint64_t)offset, length};
    int flags = fcntl(fd, F_GETFL);
    record(flags >= 0 && flags & O_DSYNC ? 'd' : 'w', path, NULL, numbers, 2, bytes, length);
}

/* Every write, as a list of pieces at an offset; -1 where the descriptor's own place counts. */
static ssize_t do_write(const char *name, int fd, const struct iovec *pieces, int count, off64_t offset) {
    char path[PATH_BYTES];
    if (!watched(fd, path)) {
        if (offset >= 0) return count == 1 ? real_pwrite(fd, pieces->iov_base, pieces->iov_len, offset)
                                           : real_pwritev(fd, pieces, count, offset);
        return count == 1 ? real_write(fd, pieces->iov_base, pieces->iov_len) : real_writev(fd, pieces, count);
    }
    pthread_mutex_lock(&lock);
    size_t total = 0;
    for (int at = 0; at < count; at++) total += pieces[at].iov_len;
    char *bytes = malloc(total ? total : 1);
    if (!bytes) abort();
    size_t filled = 0;
    for (int at = 0; at < count; at++) {
        memcpy(bytes + filled, pieces[at].iov_base, pieces[at].iov_len);
        filled += pieces[at].iov_len;
    }
    enum fate fate = decide(name, path);
    ssize_t done = -1;
    int error = fault_errno;
    if (fate != FAIL) {
        off64_t from = offset >= 0 ? offset : lseek64(fd, 0, SEEK_CUR);
        size_t wanted = fate == SHORTEN ? total / 2 : total;
        done = offset >= 0 ? real_pwrite(fd, bytes, wanted, offset) : real_write(fd, bytes, wanted);
        if (done < 0) error = errno;
        else record_write(fd, path, from, bytes, (size_t)done);
    }
    free(bytes);
    pthread_mutex_unlock(&lock);
    if (fate == DO_AND_FAIL) done = -1;
    if (done < 0) errno = error;
    return done;
}

ssize_t write(int fd, const void *bytes, size_t count) {
    struct iovec piece = {(void *)bytes, count};
    return do_write("write", fd, &piece, 1, -1);
}

ssize_t writev(int fd, const struct iovec *pieces, int count) { return do_write("writev", fd, pieces, count, -1); }

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset) {
    struct iovec piece = {(void *)bytes, count};
    return do_write("pwrite", fd, &piece, 1, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset) {
    struct iovec piece = {(void *)bytes, count};
    return do_write("pwrite", fd, &piece, 1, offset);
}

ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t offset) {
    return do_write("pwritev", fd, pieces, count, offset);
}

ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off64_t offset) {
    return do_write("pwritev", fd, pieces, count, offset);
}

static int do_sync(const char *name, int (*real)(int), int fd) {
    char path[PATH_BYTES];
    if (!watched(fd, path)) return real(fd);
    pthread_mutex_lock(&lock);
    enum fate fate = decide(name, path);
    int done = -1, error = fault_errno;
    if (fate == PASS || fate == DO_AND_FAIL) {
        done = real(fd);
        if (done != 0) error = errno;
        else record('s', path, NULL, NULL, 0, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    if (fate == DO_AND_FAIL) done = -1;
    if (done != 0) errno = error;
    return done;
}

int fsync(int fd) { return do_sync("fsync", real_fsync, fd); }
int fdatasync(int fd) { return do_sync("fdatasync", real_fdatasync, fd); }

int ftruncate64(int fd, off64_t length) {
    char path[PATH_BYTES];
    if (!watched(fd, path)) return real_ftruncate(fd, length);
    pthread_mutex_lock(&lock);
    enum fate fate = decide("ftruncate", path);
    int done = -1, error = fault_errno;
    if (fate == PASS || fate == DO_AND_FAIL) {
        uint64_t number = (uint64_t)length;
        done = real_ftruncate(fd, length);
        if (done != 0) error = errno;
        else record('t', path, NULL, &number, 1, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    if (fate == DO_AND_FAIL) done = -1;
    if (done != 0) errno = error;
    return done;
}

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

int rename(const char *from, const char *to) {
    if (!is_watched(to)) return real_rename(from, to);
    pthread_mutex_lock(&lock);
    enum fate fate = decide("rename", to);
    int done = -1, error = fault_errno;
    if (fate == PASS || fate == DO_AND_FAIL) {
        done = real_rename(from, to);
        if (done != 0) error = errno;
        else record('r', from, to, NULL, 0, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    if (fate == DO_AND_FAIL) done = -1;
    if (done != 0) errno = error;
    return done;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int done = real_clock_gettime(clock, time);
    const char *seconds = getenv("FAULTS_CLOCK_SECONDS");
    if (done == 0 && clock == CLOCK_REALTIME && seconds) time->tv_sec += atol(seconds);
    return done;
}
