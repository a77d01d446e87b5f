/* A filesystem that lies: preloaded into a process, it lets chosen calls on chosen files fail.
 *
 * Rules come from the environment variable EBBTIDE_FAULTS, or from ebbtide_faults() at run time; ebbtide_faults_fired()
 * says how many calls met one since. A rule is
 *
 *     OP[.direct|.cached] SUBSTRING NTH TIMES ACTION [NUMBER]
 *
 * and rules are separated by ';'. OP: open read write allocate truncate sync close rename link unlink mkdir.
 * ".direct" and ".cached" take only descriptors (or opens) with or without O_DIRECT. The rule meets calls on paths
 * that contain SUBSTRING, or, if there is a '*' in it, that it fits as a whole ('*' goes across directories); of rename
 * and link: either path. From the NTH of them on, TIMES times (0: always).
 * Only the first rule that meets a call is obeyed. ACTION is one of
 *
 *     errno N      the call fails                          zero     it moves nothing, and says so
 *     short        it moves half, in whole pages           odd      it moves half, of odd length
 *     hang MS      it waits, then goes on                  cut N    the file is first truncated to N bytes
 *     lose N       the file's bytes turn to zeros, as pages that could not be written back; then errno N
 *     kill         SIGKILL before the call                 after    SIGKILL after it
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
enum { PAGE = 4096, MOST_RULES = 16 };

struct rule {
    char op[24], part[256], action[8];
    long nth, times, number, met;
};

/* What became of one call: whether a rule met it, and whether it has failed by that already (errno is set). */
struct verdict {
    int met, failed;
    struct rule rule;
};

static struct rule rules[MOST_RULES];
static int rule_count;
static long fired;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void ebbtide_faults(const char *text) {
    pthread_mutex_lock(&lock);
    char *copy = strdup(text ? text : ""), *rest = copy, *one;
    rule_count = 0;
    fired = 0;
    while ((one = strsep(&rest, ";")) && rule_count < MOST_RULES) {
        struct rule r = {.number = 0, .met = 0};
        if (sscanf(one, " %23s %255s %ld %ld %7s %ld", r.op, r.part, &r.nth, &r.times, r.action, &r.number) >= 5)
            rules[rule_count++] = r;
    }
    free(copy);
    pthread_mutex_unlock(&lock);
}

long ebbtide_faults_fired(void) {
    pthread_mutex_lock(&lock);
    long result = fired;
    pthread_mutex_unlock(&lock);
    return result;
}

__attribute__((constructor)) static void start(void) { ebbtide_faults(getenv("EBBTIDE_FAULTS")); }

/* ---- which rule a call meets ---- */

static int fits(const char *path, const char *part) {
    return strchr(part, '*') ? fnmatch(part, path, 0) == 0 : strstr(path, part) != NULL;
}

static int matches(const struct rule *r, const char *op, const char *path, const char *other, int direct) {
    size_t length = strcspn(r->op, ".");
    if (strlen(op) != length || strncmp(r->op, op, length) != 0) return 0;
    if (r->op[length] && strcmp(r->op + length, direct ? ".direct" : ".cached") != 0) return 0;
    return fits(path, r->part) || (other && fits(other, r->part));
}

static struct verdict meet(const char *op, const char *path, const char *other, int direct) {
    struct verdict v = {0};
    pthread_mutex_lock(&lock);
    for (int i = 0; i < rule_count && !v.met; i++) {
        struct rule *r = &rules[i];
        if (!matches(r, op, path, other, direct)) continue;
        r->met++;
        if (r->met < r->nth || (r->times && r->met >= r->nth + r->times)) continue;
        v.rule = *r;
        v.met = 1;
        fired++;
    }
    pthread_mutex_unlock(&lock);
    return v;
}

/* ---- what it does ---- */

static int is(const struct verdict *v, const char *action) { return v->met && strcmp(v->rule.action, action) == 0; }

static void resize(const char *path, long size) {
    if (truncate(path, size) != 0) perror("shim: truncate");
}

static void lose(const char *path) {
    struct stat status;
    if (stat(path, &status) != 0) return;
    resize(path, 0);
    resize(path, status.st_size);
}

/* Before the call; `path` leads to the file, also to one without a name. */
static struct verdict obey(struct verdict v, const char *path) {
    if (is(&v, "kill")) kill(getpid(), SIGKILL);
    if (is(&v, "cut")) resize(path, v.rule.number);
    if (is(&v, "lose")) lose(path);
    if (is(&v, "hang")) {
        struct timespec rest = {v.rule.number / 1000, (v.rule.number % 1000) * 1000000L};
        while (nanosleep(&rest, &rest) != 0 && errno == EINTR) {}
    }
    v.failed = is(&v, "errno") || is(&v, "lose");
    if (v.failed) errno = (int)v.rule.number;
    return v;
}

static int done(const struct verdict *v, int result) {
    if (is(v, "after")) kill(getpid(), SIGKILL);
    return result;
}

static struct verdict judge(const char *op, const char *path, const char *other, int direct) {
    return obey(meet(op, path, other, direct), path);
}

static struct verdict judge_fd(const char *op, int fd) {
    char link[64], path[PATH_MAX];
    int flags = fcntl(fd, F_GETFL);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    return obey(meet(op, path, NULL, flags >= 0 && flags & O_DIRECT), link);
}

/* ---- calls that move bytes ---- */

static size_t less(const struct verdict *v, size_t length) {
    size_t half = length / 2;
    if (is(v, "short") && half >= PAGE) return half - half % PAGE;
    if (is(v, "odd") && length > 1) return half % 2 ? half : half > 1 ? half - 1 : 1;
    return length;
}

/* A direct request of odd length would be refused: it is made in full, and what it is said to have moved is odd. */
static ssize_t odd_direct(const struct verdict *v, void *memory, ssize_t result) {
    ssize_t said = result > 0 ? (ssize_t)less(v, result) : result;
    if (memory && said < result) memset((char *)memory + said, 0xEE, result - said);
    return said;
}

/* Python asks for one vector; more are passed on as they are. */
#define MOVE(NAME, OP, TO)                                                                        \
    ssize_t NAME(int fd, const struct iovec *v, int count, off64_t at, int flags) {               \
        if (count != 1) return REAL(NAME)(fd, v, count, at, flags);                               \
        struct verdict verdict = judge_fd(OP, fd);                                                \
        if (verdict.failed) return -1;                                                            \
        if (is(&verdict, "zero")) return 0;                                                       \
        int odd = is(&verdict, "odd") && fcntl(fd, F_GETFL) & O_DIRECT;                           \
        struct iovec one = {v->iov_base, odd ? v->iov_len : less(&verdict, v->iov_len)};          \
        ssize_t result = REAL(NAME)(fd, &one, 1, at, flags);                                      \
        done(&verdict, 0);                                                                        \
        return odd ? odd_direct(&verdict, TO, result) : result;                                   \
    }
MOVE(preadv64v2, "read", v->iov_base)
MOVE(pwritev64v2, "write", NULL)

#define MOVE_PLAIN(NAME, OP, PARAMETERS, ...)               \
    ssize_t NAME PARAMETERS {                               \
        struct verdict verdict = judge_fd(OP, fd);          \
        if (verdict.failed) return -1;                      \
        if (is(&verdict, "zero")) return 0;                 \
        length = less(&verdict, length);                    \
        ssize_t result = REAL(NAME)(__VA_ARGS__);           \
        done(&verdict, 0);                                  \
        return result;                                      \
    }
MOVE_PLAIN(read, "read", (int fd, void *to, size_t length), fd, to, length)
MOVE_PLAIN(write, "write", (int fd, const void *from, size_t length), fd, from, length)
MOVE_PLAIN(pread64, "read", (int fd, void *to, size_t length, off64_t at), fd, to, length, at)
MOVE_PLAIN(pwrite64, "write", (int fd, const void *from, size_t length, off64_t at), fd, from, length, at)

/* ---- the other calls ---- */

#define ON_FD(NAME, OP, PARAMETERS, ...)                    \
    int NAME PARAMETERS {                                   \
        struct verdict verdict = judge_fd(OP, fd);          \
        if (verdict.failed) return -1;                      \
        return done(&verdict, REAL(NAME)(__VA_ARGS__));     \
    }
ON_FD(fsync, "sync", (int fd), fd)
ON_FD(fdatasync, "sync", (int fd), fd)
ON_FD(ftruncate64, "truncate", (int fd, off64_t size), fd, size)
ON_FD(fallocate64, "allocate", (int fd, int mode, off64_t at, off64_t size), fd, mode, at, size)

int close(int fd) { /* like Linux: the descriptor is gone, whatever close says */
    struct verdict verdict = judge_fd("close", fd);
    int code = errno, result = REAL(close)(fd);
    if (!verdict.failed) return done(&verdict, result);
    errno = code;
    return -1;
}

#define ON_PATH(NAME, OP, PATH, OTHER, PARAMETERS, ...)         \
    int NAME PARAMETERS {                                       \
        struct verdict verdict = judge(OP, PATH, OTHER, 0);     \
        if (verdict.failed) return -1;                          \
        return done(&verdict, REAL(NAME)(__VA_ARGS__));         \
    }
ON_PATH(rename, "rename", from, to, (const char *from, const char *to), from, to)
ON_PATH(renameat, "rename", from, to, (int a, const char *from, int b, const char *to), a, from, b, to)
ON_PATH(link, "link", from, to, (const char *from, const char *to), from, to)
ON_PATH(linkat, "link", from, to, (int a, const char *from, int b, const char *to, int flags), a, from, b, to, flags)
ON_PATH(unlink, "unlink", path, NULL, (const char *path), path)
ON_PATH(unlinkat, "unlink", path, NULL, (int at, const char *path, int flags), at, path, flags)
ON_PATH(mkdir, "mkdir", path, NULL, (const char *path, mode_t mode), path, mode)
ON_PATH(mkdirat, "mkdir", path, NULL, (int at, const char *path, mode_t mode), at, path, mode)

static mode_t mode_of(int flags, va_list more) {
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(more, mode_t) : 0;
}

int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = mode_of(flags, more);
    va_end(more);
    struct verdict verdict = judge("open", path, NULL, flags & O_DIRECT);
    return verdict.failed ? -1 : done(&verdict, REAL(open64)(path, flags, mode));
}

int openat64(int at, const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = mode_of(flags, more);
    va_end(more);
    struct verdict verdict = judge("open", path, NULL, flags & O_DIRECT);
    return verdict.failed ? -1 : done(&verdict, REAL(openat64)(at, path, flags, mode));
}
