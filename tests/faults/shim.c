/* Counts a process's file system writes at the C library's edge, and disturbs the N-th.
 *
 * Loaded by LD_PRELOAD, so it sees Python, Arrow and what Rust libraries write alike. Idle until fault_arm() is called;
 * then every call counts that opens for writing, writes, flushes, truncates, renames, links, makes or removes below one
 * folder. Reading is never disturbed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#undef open
#undef open64
#undef openat
#undef openat64
#undef creat
#undef creat64

enum kind { KILL, TORN, FULL, BROKEN, SHORT, OTHER };  /* as in harness.py */
enum verdict { GO, FAIL, HALF, LAST };          /* LAST: do it, or half of it, and die */

#define FILES 65536
#define CALLS 20000

static char folder[PATH_MAX];
static size_t folder_length;
static long at, counted;
static int disturbance, armed;
static char tracked[FILES];  /* descriptors that are open for writing below the folder */
static const char *names[CALLS];

static int other;  /* the process that dies beside this one */

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* What to do with a call; `grows`: whether it needs space, which a disk that is full has not afterwards either. */
static enum verdict judge(const char *name, int grows) {
    long number = __atomic_add_fetch(&counted, 1, __ATOMIC_SEQ_CST);
    if (number < CALLS) names[number] = name;
    if (disturbance == FULL && at && number >= at && grows) { errno = ENOSPC; return FAIL; }
    if (number != at) return GO;
    switch (disturbance) {
        case KILL: die();
        case OTHER: kill(other, SIGKILL); break;
        case TORN: return LAST;
        case BROKEN: errno = EIO; return FAIL;
        case SHORT: return HALF;
    }
    return GO;
}

static int below(const char *path) { return !strncmp(path, folder, folder_length); }

/* Whether a path, relative to a folder's descriptor, lies below the folder. */
static int inside(int directory, const char *path) {
    char whole[2 * PATH_MAX], link[64];
    ssize_t length;
    if (!armed || !path) return 0;
    if (path[0] == '/') return below(path);
    if (directory == AT_FDCWD) {
        if (!getcwd(whole, PATH_MAX)) return 0;
        length = (ssize_t)strlen(whole);
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        if ((length = readlink(link, whole, PATH_MAX)) < 0) return 0;
    }
    snprintf(whole + length, sizeof whole - (size_t)length, "/%s", path);
    return below(whole);
}

/* Whether a descriptor is that of a file or folder below the folder. */
static int within(int file) {
    char path[PATH_MAX], link[64];
    if (!armed) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

static int known(int file) { return armed && file >= 0 && file < FILES && tracked[file]; }
static void track(int file) { if (file >= 0 && file < FILES) tracked[file] = 1; }

/* -------------------------------------------------------------------------------- for the harness, by ctypes */

void fault_arm(const char *path, long number, int kind) {
    strncpy(folder, path, sizeof folder - 1);
    folder_length = strlen(folder);
    at = number; disturbance = kind; counted = 0;
    memset(tracked, 0, sizeof tracked);
    armed = 1;
}

void fault_other(int process) { other = process; }
long fault_disarm(void) { armed = 0; return counted; }
const char *fault_name(long number) { return number > 0 && number < CALLS && names[number] ? names[number] : "?"; }

/* ------------------------------------------------------------------------------------------------- the calls */

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

#define SIMPLE(type, name, grows, condition, arguments, values)       \
    type name arguments {                                             \
        REAL(name);                                                   \
        if (!(condition)) return real values;                         \
        switch (judge(#name, grows)) {                                \
            case FAIL: return (type)-1;                               \
            case LAST: real values; die();                            \
            default: return real values;                              \
        }                                                             \
    }

SIMPLE(int, fsync, 1, within(file), (int file), (file))
SIMPLE(int, fdatasync, 1, within(file), (int file), (file))
SIMPLE(int, ftruncate, 0, known(file), (int file, off_t size), (file, size))
SIMPLE(int, ftruncate64, 0, known(file), (int file, off64_t size), (file, size))
SIMPLE(int, truncate, 0, inside(AT_FDCWD, path), (const char *path, off_t size), (path, size))
SIMPLE(int, rename, 1, inside(AT_FDCWD, to), (const char *from, const char *to), (from, to))
SIMPLE(int, renameat, 1, inside(b, to), (int a, const char *from, int b, const char *to), (a, from, b, to))
SIMPLE(int, renameat2, 1, inside(b, to), (int a, const char *from, int b, const char *to, unsigned f), (a, from, b, to, f))
SIMPLE(int, link, 1, inside(AT_FDCWD, to), (const char *from, const char *to), (from, to))
SIMPLE(int, linkat, 1, inside(b, to), (int a, const char *from, int b, const char *to, int f), (a, from, b, to, f))
SIMPLE(int, symlink, 1, inside(AT_FDCWD, to), (const char *from, const char *to), (from, to))
SIMPLE(int, unlink, 0, inside(AT_FDCWD, path), (const char *path), (path))
SIMPLE(int, unlinkat, 0, inside(directory, path), (int directory, const char *path, int flags), (directory, path, flags))
SIMPLE(int, rmdir, 0, inside(AT_FDCWD, path), (const char *path), (path))
SIMPLE(int, remove, 0, inside(AT_FDCWD, path), (const char *path), (path))
SIMPLE(int, mkdir, 1, inside(AT_FDCWD, path), (const char *path, mode_t mode), (path, mode))
SIMPLE(int, mkdirat, 1, inside(directory, path), (int directory, const char *path, mode_t mode), (directory, path, mode))

#define WRITING(name, arguments, values, halved)                      \
    ssize_t name arguments {                                          \
        REAL(name);                                                   \
        if (!known(file)) return real values;                         \
        switch (judge(#name, 1)) {                                    \
            case FAIL: return -1;                                     \
            case LAST: if (size > 1) real halved; die();              \
            case HALF: if (size > 1) return real halved;              \
            default: return real values;                              \
        }                                                             \
    }

WRITING(write, (int file, const void *data, size_t size), (file, data, size), (file, data, size / 2))
WRITING(pwrite, (int file, const void *data, size_t size, off_t place), (file, data, size, place), (file, data, size / 2, place))
WRITING(pwrite64, (int file, const void *data, size_t size, off64_t place), (file, data, size, place), (file, data, size / 2, place))

/* of several pieces half of the first */
ssize_t writev(int file, const struct iovec *pieces, int count) {
    REAL(writev);
    if (!known(file) || count < 1) return real(file, pieces, count);
    struct iovec half = {pieces[0].iov_base, pieces[0].iov_len > 1 ? pieces[0].iov_len / 2 : pieces[0].iov_len};
    switch (judge("writev", 1)) {
        case FAIL: return -1;
        case LAST: real(file, &half, 1); die();
        case HALF: return real(file, &half, 1);
        default: return real(file, pieces, count);
    }
}

#define COPYING(name, arguments, values, halved) \
    ssize_t name arguments {                     \
        REAL(name);                              \
        if (!known(file)) return real values;    \
        switch (judge(#name, 1)) {               \
            case FAIL: return -1;                \
            case LAST: real halved; die();       \
            case HALF: return real halved;       \
            default: return real values;         \
        }                                        \
    }

COPYING(sendfile, (int file, int from, off_t *place, size_t size), (file, from, place, size), (file, from, place, size / 2 + 1))
COPYING(sendfile64, (int file, int from, off64_t *place, size_t size), (file, from, place, size), (file, from, place, size / 2 + 1))
COPYING(copy_file_range, (int from, off64_t *a, int file, off64_t *b, size_t size, unsigned f), (from, a, file, b, size, f), (from, a, file, b, size / 2 + 1, f))

static int opens(int flags) { return (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)); }

#define OPENING(name, directory, arguments, values)                                   \
    int name arguments {                                                              \
        REAL(name);                                                                   \
        mode_t mode = 0;                                                              \
        if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); } \
        if (!opens(flags) || !inside(directory, path)) return real values;            \
        enum verdict verdict = judge(#name, (flags & O_CREAT) != 0);                  \
        if (verdict == FAIL) return -1;                                               \
        int file = real values;                                                       \
        if (verdict == LAST) die();                                                   \
        track(file);                                                                  \
        return file;                                                                  \
    }

OPENING(open, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPENING(open64, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPENING(openat, at_, (int at_, const char *path, int flags, ...), (at_, path, flags, mode))
OPENING(openat64, at_, (int at_, const char *path, int flags, ...), (at_, path, flags, mode))

int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int close(int file) {
    REAL(close);
    if (file >= 0 && file < FILES) tracked[file] = 0;
    return real(file);
}

int dup(int file) {
    REAL(dup);
    int other = real(file);
    if (known(file)) track(other);
    return other;
}

int dup2(int file, int other) {
    REAL(dup2);
    int got = real(file, other);
    if (got >= 0 && got < FILES) tracked[got] = known(file);
    return got;
}

/* A mapping through which a file could change unseen: none is expected, so it counts and can be found by its name. */
void *mmap(void *start, size_t size, int protection, int flags, int file, off_t place) {
    REAL(mmap);
    if (known(file) && (flags & MAP_SHARED) && (protection & PROT_WRITE) && judge("mmap", 1) == FAIL) return MAP_FAILED;
    return real(start, size, protection, flags, file, place);
}
