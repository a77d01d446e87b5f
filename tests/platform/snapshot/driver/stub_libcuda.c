/* A libcuda.so.1 without a GPU, for the CUDA adapter's tests: the checkpoint calls of cuda.h 13.4 on pids, in memory.
 *
 * Settings from the environment: STUB_CUDA_VERSION (13040), STUB_GPUS (2), STUB_BYTES (4096, on each GPU),
 * STUB_LOCK_SLEEP_MS (0), STUB_NO_CUDA (a pid that does not use CUDA), STUB_FAIL ("lock=600,checkpoint=2": the call answers that and changes nothing;
 * "checkpoint!=2": the process is FAILED afterwards). What it was told is printed by stub_log to stderr when
 * STUB_LOG is set. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { char bytes[16]; } Uuid;
typedef struct { unsigned timeoutMs, reserved0; uint64_t reserved1[7]; } LockArgs;
typedef struct { uint64_t devPtr; size_t size; void *stream; } PerDevice;
typedef struct { void *handle; PerDevice *perDeviceData; unsigned deviceCount; } Info;
typedef struct { Info **out; char reserved[56]; } CheckpointArgs;
typedef struct { Uuid oldUuid, newUuid; } Pair;
typedef struct { Pair *pairs; unsigned count, padding; Info **out; char reserved[40]; } RestoreArgs;

enum { RUNNING, LOCKED, CHECKPOINTED, FAILED, CHECKPOINTING, RESTORING };
enum { OK = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201, ILLEGAL_STATE = 401, NOT_SUPPORTED = 801 };
#define MAX 64
static struct { int pid, state; } known[MAX];
static int retained[8], popped = 0;
static uint8_t *memory[8];
static PerDevice per[8];
static Info info;
static int open_pid;

static int setting(const char *name, int fallback) { char *v = getenv(name); return v ? atoi(v) : fallback; }
static int gpus(void) { return setting("STUB_GPUS", 2); }
static int *state_of(int pid) {
    if (kill(pid, 0)) return NULL;
    for (int i = 0; i < MAX; i++) {
        if (known[i].pid == pid) return &known[i].state;
        if (!known[i].pid) { known[i].pid = pid; return &known[i].state; }
    }
    return NULL;
}
static int failing(const char *call, int *state) {
    char *at = getenv("STUB_FAIL"), want[64];
    if (!at) return 0;
    snprintf(want, sizeof want, "%s=", call);
    char *hit = strstr(at, want);
    if (hit) return atoi(hit + strlen(want));
    snprintf(want, sizeof want, "%s!=", call);
    hit = strstr(at, want);
    if (hit) { *state = FAILED; return atoi(hit + strlen(want)); }
    return 0;
}
static int change(const char *call, int pid, int from, int to) {
    int *state = state_of(pid);
    if (!state) return INVALID_VALUE;
    if (*state != from) return ILLEGAL_STATE;
    int error = failing(call, state);
    if (error) return error;
    *state = to;
    return OK;
}
static int open_operation(const char *call, int pid, int from, int to, Info **out, int fill) {
    if (pid == getpid()) return NOT_SUPPORTED;
    for (int g = 0; g < gpus(); g++) if (!retained[g]) return INVALID_CONTEXT;
    int error = change(call, pid, from, to);
    if (error) return error;
    size_t size = setting("STUB_BYTES", 4096);
    for (int g = 0; g < gpus(); g++) {
        if (!memory[g]) { memory[g] = malloc(size); memset(memory[g], 'a' + g, size); }
        if (!fill) memset(memory[g], 0, size);
        /* The driver's order need not be that of the devices: here it is the reverse. */
        per[gpus() - 1 - g] = (PerDevice){(uint64_t)memory[g], size, (void *)(uintptr_t)(100 + g)};
    }
    info = (Info){(void *)0xbeef, per, gpus()};
    open_pid = pid;
    *out = &info;
    return OK;
}

int cuInit(unsigned flags) { return setting("STUB_INIT", 0); }
int cuDriverGetVersion(int *v) { *v = setting("STUB_CUDA_VERSION", 13040); return OK; }
int cuDeviceGetCount(int *n) { *n = gpus(); return OK; }
int cuDeviceGet(int *d, int i) { *d = i; return OK; }
int cuDeviceGetUuid_v2(Uuid *u, int d) { memset(u, 0, 16); u->bytes[0] = 0x10; u->bytes[15] = d; return OK; }
int cuDeviceGetName(char *name, int length, int d) {
    if (setting("STUB_NO_NAME", 0)) return INVALID_VALUE;
    snprintf(name, length, "NVIDIA Stub %d", d / 2); return OK;
}
int cuDevicePrimaryCtxRetain(void **c, int d) {
    if (d == setting("STUB_NO_CONTEXT", -1)) return 2;
    retained[d]++; *c = (void *)(uintptr_t)(10 + d); return OK;
}
int cuDevicePrimaryCtxRelease_v2(int d) { retained[d]--; return OK; }
int cuCtxPushCurrent_v2(void *c) { popped--; return OK; }
int cuCtxPopCurrent_v2(void **c) { popped++; *c = 0; return OK; }
int cuStreamGetDevice(void *s, int *d) { *d = (int)(uintptr_t)s - 100; return OK; }
int cuStreamSynchronize(void *s) { return OK; }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s) {
    if (setting("STUB_NO_COPY", 0)) return 700;
    memcpy(to, (void *)from, n); return OK;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, void *from, size_t n, void *s) { memcpy((void *)to, from, n); return OK; }
int cuGetErrorName(int e, const char **name) {
    switch (e) {
        case 1: *name = "CUDA_ERROR_INVALID_VALUE"; return OK;
        case 2: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return OK;
        case 201: *name = "CUDA_ERROR_INVALID_CONTEXT"; return OK;
        case 401: *name = "CUDA_ERROR_ILLEGAL_STATE"; return OK;
        case 600: *name = "CUDA_ERROR_NOT_READY"; return OK;
        case 700: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return OK;
        case 801: *name = "CUDA_ERROR_NOT_SUPPORTED"; return OK;
    }
    return INVALID_VALUE;
}
int cuCheckpointProcessGetState(int pid, int *out) {
    int *state = state_of(pid);
    if (!state || pid == setting("STUB_NO_CUDA", -1)) return INVALID_VALUE;
    *out = *state;
    return failing("state", state);
}
int cuCheckpointProcessLock(int pid, LockArgs *args) {
    if (getenv("STUB_LOG")) fprintf(stderr, "lock timeout %u\n", args ? args->timeoutMs : 0);
    usleep(1000 * setting("STUB_LOCK_SLEEP_MS", 0));
    return change("lock", pid, RUNNING, LOCKED);
}
int cuCheckpointProcessCheckpoint(int pid, CheckpointArgs *args) {
    if (args && args->out) return open_operation("checkpoint", pid, LOCKED, CHECKPOINTING, args->out, 1);
    return change("checkpoint", pid, LOCKED, CHECKPOINTED);
}
int cuCheckpointProcessRestore(int pid, RestoreArgs *args) {
    for (unsigned i = 0; args && getenv("STUB_LOG") && i < args->count; i++)
        fprintf(stderr, "pair %d->%d of %u\n", args->pairs[i].oldUuid.bytes[15], args->pairs[i].newUuid.bytes[15], args->count);
    if (args && args->count && args->count != (unsigned)gpus()) return INVALID_VALUE;
    if (args && args->out) return open_operation("restore", pid, CHECKPOINTED, RESTORING, args->out, 0);
    return change("restore", pid, CHECKPOINTED, LOCKED);
}
int cuCheckpointProcessUnlock(int pid, void *args) { return change("unlock", pid, LOCKED, RUNNING); }
int cuCheckpointOperationComplete(void *handle) {
    if (handle != (void *)0xbeef) return INVALID_VALUE;
    int *state = state_of(open_pid);
    if (!state) return INVALID_VALUE;
    int was = *state;
    return change("complete", open_pid, was, was == CHECKPOINTING ? CHECKPOINTED : LOCKED);
}
int stub_retained(void) { int n = 0; for (int g = 0; g < 8; g++) n += retained[g]; return n; }
int stub_pushed(void) { return -popped; }
int stub_byte(int gpu, int at) { return memory[gpu] ? memory[gpu][at] : -1; }

static int since(const char *name) {
    if (!strcmp(name, "cuCheckpointOperationComplete")) return 13040;
    return strncmp(name, "cuCheckpoint", 12) ? 0 : 12080;
}
int cuGetProcAddress_v2(const char *name, void **at, int version, uint64_t flags, int *status) {
    char second[128];
    int has = setting("STUB_CUDA_VERSION", 13040);
    snprintf(second, sizeof second, "%s_v2", name);
    *at = NULL;
    if (since(name) <= has) {
        *at = dlsym(RTLD_DEFAULT, name);
        void *self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        if (self) { *at = dlsym(self, second); if (!*at) *at = dlsym(self, name); }
    }
    if (status) *status = *at ? 0 : 1;
    return OK;
}
