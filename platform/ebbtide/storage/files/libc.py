"""The few calls of the C library that Python does not offer: without the interpreter lock, errors as OSError.

Why not `os.posix_fallocate`: where a filesystem cannot allocate, glibc writes one byte into each block instead, which
takes minutes over NFS and fails on a file opened with O_DIRECT. ``fallocate`` says EOPNOTSUPP at once.
Why not `mmap.mmap`: an object that unmaps when it is collected is wrong for memory that must outlive every late write
into it, and in a forked child it would unmap whatever has come to lie there since.

Numbers are Linux's (include/uapi); flags are equal on x86-64 and arm64, and so is the number of ``cachestat``.
"""

import ctypes
import os

MADV_DONTFORK = 10
MADV_HUGEPAGE = 14
MADV_POPULATE_WRITE = 23  # since Linux 5.14
PROT_READ, PROT_WRITE = 1, 2
MAP_SHARED, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE = 0x01, 0x02, 0x20, 0x4000
SYS_CACHESTAT = 451  # since Linux 6.5
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
STATX_DIOALIGN = 0x2000  # since Linux 6.1
MAP_FAILED = ctypes.c_void_p(-1).value

_LIBC = ctypes.CDLL(None, use_errno=True)  # through the process' own symbols, so that what is preloaded is seen
_MMAP = _LIBC.mmap
_MMAP.restype = ctypes.c_void_p
_MMAP.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_MUNMAP = _LIBC.munmap
_MUNMAP.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MADVISE = _LIBC.madvise
_MADVISE.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MINCORE = _LIBC.mincore
_MINCORE.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_FALLOCATE = getattr(_LIBC, "fallocate64", _LIBC.fallocate)
_FALLOCATE.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_SYSCALL = _LIBC.syscall
_SYSCALL.restype = ctypes.c_long


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def map_memory(size_bytes: int, *, fd: int = -1, offset: int = 0) -> int:
    """The address of new memory: anonymous and private, or with ``fd`` a shared, read-only view of a file."""
    flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE if fd < 0 else MAP_SHARED
    protection = PROT_READ | PROT_WRITE if fd < 0 else PROT_READ
    address = _MMAP(None, size_bytes, protection, flags, fd, offset)
    if address is None or address == MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(address)


def unmap_memory(address: int, size_bytes: int) -> None:
    """Give memory back; nobody may hold a view of it."""
    _checked(_MUNMAP(address, size_bytes))


def madvise(address: int, size_bytes: int, advice: int) -> None:
    """One of the ``MADV_*`` hints or orders."""
    _checked(_MADVISE(address, size_bytes, advice))


def mincore(address: int, pages: int, page_bytes: int) -> bytes:
    """One byte for each mapped page; its lowest bit says whether the page is resident."""
    vector = ctypes.create_string_buffer(pages)
    _checked(_MINCORE(address, pages * page_bytes, vector))
    return vector.raw


def fallocate(fd: int, offset: int, size_bytes: int) -> None:
    """Reserve blocks for a range and extend the file to its end; EOPNOTSUPP where the filesystem cannot."""
    _checked(_FALLOCATE(fd, 0, offset, size_bytes))


def cachestat(fd: int, offset: int, size_bytes: int) -> int:
    """How many pages of a range are in the page cache; ENOSYS before Linux 6.5, EPERM without write access."""
    wanted = (ctypes.c_uint64 * 2)(offset, size_bytes)
    answer = (ctypes.c_uint64 * 5)()
    arguments = (ctypes.c_long(SYS_CACHESTAT), ctypes.c_uint(fd), ctypes.byref(wanted), ctypes.byref(answer))
    _checked(_SYSCALL(*arguments, ctypes.c_uint(0)))
    return int(answer[0])


class _Statx(ctypes.Structure):
    _fields_ = [
        ("mask", ctypes.c_uint32),
        ("until_dio", ctypes.c_uint8 * 148),
        ("dio_mem_align", ctypes.c_uint32),
        ("dio_offset_align", ctypes.c_uint32),
        ("rest", ctypes.c_uint8 * 96),
    ]


def direct_io_alignment(fd: int) -> tuple[int, int] | None:
    """(of memory, of offsets) in bytes, from ``statx``; zeros where direct I/O is refused, None if unknown."""
    statx = getattr(_LIBC, "statx", None)
    if statx is None:  # glibc before 2.28
        return None
    answer = _Statx()
    arguments = (ctypes.c_int(fd), ctypes.c_char_p(b""), ctypes.c_int(AT_EMPTY_PATH), ctypes.c_uint(STATX_DIOALIGN))
    if statx(*arguments, ctypes.byref(answer)) < 0 or not answer.mask & STATX_DIOALIGN:
        return None
    return int(answer.dio_mem_align), int(answer.dio_offset_align)
