"""Stand-ins for libcuda and libcufile, in C, so that the real kvikio runs where there is no GPU.

All memory counts as device memory; copies are memcpy. cuFile's reads are preads with the faults that the test sets:

- ``short N``: the next requests bring at most N bytes; ``error N``: the next one returns -N; ``hang 1``: the next one
  waits until ``hang 0``; ``times K``: for how many requests a fault holds.
"""

import ctypes
import subprocess
from pathlib import Path

_CUDA = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
typedef unsigned long long ptr;
static char context;
int cuInit(unsigned f) { return 0; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuGetErrorName(int e, const char **p) { *p = "STUB"; return 0; }
int cuGetErrorString(int e, const char **p) { *p = "stub"; return 0; }
int cuPointerGetAttributes(unsigned n, int *a, void **d, ptr p) { *(unsigned *)d[0] = 2; return 0; }
int cuPointerGetAttribute(void *d, int a, ptr p) { *(void **)d = &context; return 0; }
int cuCtxGetCurrent(void **c) { *c = &context; return 0; }
int cuCtxPushCurrent_v2(void *c) { return 0; }
int cuCtxPopCurrent_v2(void **c) { *c = &context; return 0; }
int cuMemGetAddressRange_v2(ptr *b, size_t *s, ptr p) { *b = p; *s = 1 << 20; return 0; }
int cuMemHostAlloc(void **p, size_t n, unsigned f) { *p = aligned_alloc(4096, (n + 4095) & ~4095UL); return 0; }
int cuMemFreeHost(void *p) { free(p); return 0; }
int cuMemHostRegister_v2(void *p, size_t n, unsigned f) { return 0; }
int cuMemcpyAsync(ptr d, ptr s, size_t n, void *q) { memcpy((void *)d, (void *)s, n); return 0; }
int cuMemcpyHtoDAsync_v2(ptr d, void *s, size_t n, void *q) { memcpy((void *)d, s, n); return 0; }
int cuMemcpyDtoHAsync_v2(void *d, ptr s, size_t n, void *q) { memcpy(d, (void *)s, n); return 0; }
int cuMemcpyBatchAsync_v2(ptr *d, ptr *s, size_t *n, size_t c, void *a, size_t *i, size_t na, void *q) {
  for (size_t k = 0; k < c; k++) memcpy((void *)d[k], (void *)s[k], n[k]);
  return 0;
}
int cuStreamCreate(void **s, unsigned f) { *s = &context; return 0; }
"""
# What kvikio looks up besides, and does not call here.
_UNUSED = """
cuMemHostUnregister cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuCtxCreate cuCtxDestroy_v2 cuCtxGetDevice
cuDeviceGet cuDeviceGetCount cuDeviceGetAttribute cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease_v2
cuStreamSynchronize cuStreamDestroy_v2 cuStreamDestroy cuEventSynchronize cuEventCreate cuEventDestroy_v2
cuEventDestroy cuEventRecord cuEventQuery cuLaunchHostFunc cuMemcpyBatchAsync cuMemHostRegister
"""

_CUFILE = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <unistd.h>
typedef struct { int err, cu; } status;
typedef struct { int type; union { int fd; void *h; } handle; void *ops; } description;
typedef struct {
  unsigned major, minor; size_t poll, direct; unsigned supported, control;
  unsigned features, cache, per_buffer, pinned, batch, timeout;
} properties;
static volatile long at_most = -1, wrong, waits, times, refuse_handle, may_fall_back, registered, reads;
void stub_set(const char *what, long value) {
  if (!strcmp(what, "short")) at_most = value;
  if (!strcmp(what, "error")) wrong = value;
  if (!strcmp(what, "hang")) waits = value;
  if (!strcmp(what, "times")) times = value;
  if (!strcmp(what, "refuse_handle")) refuse_handle = value;
  if (!strcmp(what, "may_fall_back")) may_fall_back = value;
}
long stub_get(const char *what) { return !strcmp(what, "registered") ? registered : reads; }
static status ok(void) { status s = {0, 0}; return s; }
status cuFileDriverOpen(void) { return ok(); }
status cuFileDriverClose(void) { return ok(); }
status cuFileDriverClose_v2(void) { return ok(); }
status cuFileGetVersion(int *v) { *v = 1200; return ok(); }
status cuFileDriverGetProperties(properties *p) {
  memset(p, 0, sizeof *p);
  p->major = 2; p->minor = 26; p->control = may_fall_back ? 2 : 0;
  return ok();
}
status cuFileHandleRegister(void **h, description *d) {
  status s = {refuse_handle ? 5008 : 0, 0};
  *h = (void *)(long)(d->handle.fd + 1);
  return s;
}
void cuFileHandleDeregister(void *h) {}
status cuFileBufRegister(const void *p, size_t n, int f) { registered++; return ok(); }
status cuFileBufDeregister(const void *p) { registered--; return ok(); }
ssize_t cuFileRead(void *h, void *base, size_t n, off_t offset, off_t into) {
  __sync_fetch_and_add(&reads, 1);
  int faulty = __sync_fetch_and_sub(&times, 1) > 0;
  while (faulty && waits) usleep(1000);
  if (faulty && wrong) return -wrong;
  if (faulty && at_most >= 0 && n > (size_t)at_most) n = at_most;
  char buffer[1 << 16] __attribute__((aligned(4096)));
  size_t done = 0;
  while (done < n) {  /* the descriptor is direct, the memory may not be aligned */
    ssize_t got = pread((int)(long)h - 1, buffer, sizeof buffer, offset + done);
    if (got < 0) return -errno;
    if (got == 0) break;
    size_t take = (size_t)got < n - done ? (size_t)got : n - done;
    memcpy((char *)base + into + done, buffer, take);
    done += take;
  }
  return done;
}
ssize_t cuFileWrite(void *h, const void *base, size_t n, off_t offset, off_t from) { return -ENOSYS; }
"""
_CUFILE_UNUSED = """
cuFileDriverSetPollMode cuFileDriverSetMaxCacheSize cuFileDriverSetMaxPinnedMemSize cuFileBatchIOSetUp
cuFileBatchIOSubmit cuFileBatchIOGetStatus cuFileBatchIOCancel cuFileBatchIODestroy cuFileReadAsync
cuFileWriteAsync cuFileStreamRegister cuFileStreamDeregister
"""


def build(folder: Path) -> list[Path]:
    """Compile both; the paths of the libraries, to be loaded in this order before kvikio."""
    sources = {"libcuda.so.1": (_CUDA, _UNUSED), "libcufile.so.0": (_CUFILE, _CUFILE_UNUSED)}
    built = []
    for name, (text, unused) in sources.items():
        source, target = folder / f"{name}.c", folder / name
        source.write_text(text + "\n".join(f"int {symbol}(void) {{ return 0; }}" for symbol in unused.split()))
        command = ["gcc", "-shared", "-fPIC", "-O1", "-w", f"-Wl,-soname,{name}", "-o", str(target), str(source)]
        subprocess.run(command, check=True, capture_output=True)
        built.append(target)
    return built


class Stub:
    """The loaded stand-ins; in a process that does nothing else."""

    def __init__(self, folder: Path) -> None:
        self._libraries = [ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL) for path in build(folder)]

    def set(self, **faults: int) -> None:
        """Set faults, for one request if ``times`` is not given."""
        for what, value in ({"times": 1} | faults).items():
            self._libraries[1].stub_set(what.encode(), ctypes.c_long(value))

    def get(self, what: str) -> int:
        """``registered`` memories, or the number of ``reads``."""
        return int(self._libraries[1].stub_get(what.encode()))
