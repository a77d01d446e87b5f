"""The filesystem of the shared directory: what it is, what it allows, what it does, and how much room it has."""

from pathlib import Path

from ebbtide.diagnostics.doctor.findings import Finding, Value, Verdict
from ebbtide.diagnostics.host.filesystem_probe import FilesystemReading
from ebbtide.diagnostics.host.mount import SHARED, Kind, Mount
from ebbtide.storage.transport.transport import ALIGNMENT_BYTES

_LITTLE_BYTES = 20 << 30  # the weights of one 8B model in bf16 take 16 GB, and a publish needs room for its own copy
_LITTLE_FILES = 10_000
_REQUEST_BYTES = 1 << 20  # the largest that Linux's NFS client sends in one call


def judge_filesystem(directory: Path, mount: Mount | None, probe: FilesystemReading) -> list[Finding]:
    """All about one directory."""
    findings = [_type(directory, mount)]
    if mount is not None and "ro" in mount.options:
        what, why = f"{mount.point} is mounted read-only", "nothing can be stored"
        findings.append(
            Finding("fs.use", Verdict.MISSING, what, why, f"mount -o remount,rw {mount.point}", broken=True)
        )
        return findings
    if probe.error:
        what, why = f"{directory} cannot be used: {probe.error}", "nothing can be stored there, or loaded from there"
        findings.append(Finding("fs.use", Verdict.MISSING, what, why, _repair(probe.error), broken=True))
        return findings
    findings += [_use(directory, probe), _direct(probe), _space(mount, probe)]
    if mount is not None and mount.kind is Kind.NFS:
        findings += _nfs(mount)
    return findings


def _repair(error: str) -> str:
    for sign, remedy in (
        ("EACCES", "give this user write access"),
        ("EPERM", "give this user write access"),
        ("EROFS", "mount it for writing"),
        ("ENOSPC", "make room"),
        ("EDQUOT", "raise this user's quota"),
        ("ENOENT", "make the directory, or mount its filesystem"),
        ("ESTALE", "mount it again: the server does not know this mount any more"),
        ("hangs", "look at the storage server and the network; then mount it again"),
    ):
        if sign in error:
            return remedy
    return "look at dmesg and at the storage server"


def _type(directory: Path, mount: Mount | None) -> Finding:
    if mount is None:
        what, why = f"what filesystem {directory} is on cannot be told", "its limits are not known"
        return Finding("fs.type", Verdict.UNKNOWN, what, why, "look at /proc/self/mountinfo")
    on = f" on {mount.device.name} ({mount.device.kind})" if mount.device else ""
    name = f"{mount.type} at {mount.point}{on}" + (f" from {mount.source}" if mount.kind in SHARED else "")
    values = {"type": mount.type, "point": mount.point, "source": mount.source, "kind": mount.kind.value}
    if mount.kind in SHARED:
        return Finding("fs.type", Verdict.OK, name, values=values)
    if mount.kind in (Kind.FUSE, Kind.OTHER):
        what = f"{name}: whether other nodes see the same files is not known"
        why = "all nodes of a pool need one directory"
        if mount.kind is Kind.FUSE:
            why += "; and through FUSE each byte is copied once more"
        remedy = "check it from a second node, and give --expect-gbps to hold its speed to your needs"
        return Finding("fs.type", Verdict.UNKNOWN, what, why, remedy, values)
    why = "only this node can load from it, and what is parked there is lost with the node"
    remedy = "for a pool of several nodes use NFS, Lustre or another filesystem that all of them mount"
    if mount.kind is Kind.MEMORY:
        why = "it takes the memory that parking needs, and is empty after a reboot"
    elif mount.kind is Kind.OVERLAY:
        why = "it is the container's own layer: slow, and gone with the container"
        remedy = f"mount a volume into the container; {remedy}"
    elif mount.kind is Kind.HOST:
        why = "it goes through the machine that runs this one, and direct transfers to a GPU do not"
    return Finding("fs.type", Verdict.LIMITED, f"{name}, of this node alone", why, remedy, values)


def _use(directory: Path, probe: FilesystemReading) -> Finding:
    if probe.failures:
        what, why = "; ".join(probe.failures), "publishing and loading rely on it: the store would not be safe here"
        remedy = "use another filesystem, or mount this one without options that relax it"
        return Finding("fs.use", Verdict.MISSING, what, why, remedy, broken=True)
    return Finding("fs.use", Verdict.OK, f"{directory}: write, sync, rename and exclusive create work")


def _direct(probe: FilesystemReading) -> Finding:
    stated = f"; statx states {probe.stated[0]} for memory, {probe.stated[1]} for offsets" if probe.stated else ""
    values: dict[str, Value] = {"alignment": probe.alignment, "stated": [str(one) for one in probe.stated or ()]}
    if probe.direct_error:
        what = f"O_DIRECT is refused: {probe.direct_error}{stated}"
        why = "reads go through the page cache: a quarter of the speed when cold, and a core per GB/s"
        remedy = "use a filesystem that takes O_DIRECT: NFS, Lustre, ext4 or xfs do"
        return Finding("fs.direct", Verdict.LIMITED, what, why, remedy, values)
    what = f"O_DIRECT works at multiples of {probe.alignment} bytes{stated}"
    if probe.alignment > ALIGNMENT_BYTES:
        why = f"the store aligns to {ALIGNMENT_BYTES} bytes: pieces of files then go through the page cache"
        return Finding("fs.direct", Verdict.LIMITED, what, why, "format or mount with a smaller block size", values)
    return Finding("fs.direct", Verdict.OK, what, values=values)


def _space(mount: Mount | None, probe: FilesystemReading) -> Finding:
    what = f"{probe.free_bytes / 1e9:.1f} of {probe.total_bytes / 1e9:.1f} GB free"
    values = {"free_bytes": probe.free_bytes, "total_bytes": probe.total_bytes, "free_files": probe.free_files}
    if not probe.reserves:
        what += "; space cannot be reserved, so that a full filesystem shows only in mid-write"
    few_files = probe.free_files is not None and probe.free_files < _LITTLE_FILES
    if few_files:
        what += f"; only {probe.free_files} more files can be made"
    quota = _quota(mount)
    if probe.free_bytes < _LITTLE_BYTES or few_files:
        why = "a model or a checkpoint may not fit; writes then fail, and jobs cannot be parked on disk"
        return Finding(
            "fs.space", Verdict.LIMITED, what, why, f"make room, or use a larger filesystem; {quota}", values
        )
    return Finding("fs.space", Verdict.OK, f"{what} ({quota})", values=values)


def _quota(mount: Mount | None) -> str:
    if mount is None:
        return "a quota would not show here"
    if mount.kind is Kind.LUSTRE:
        return f"a quota does not show here: lfs quota -u $USER {mount.point}"
    if mount.kind is Kind.LOCAL and not any("quota" in name and name != "noquota" for name in mount.options):
        return "no quota is on"
    return "a quota does not show here: quota -s"


def _nfs(mount: Mount) -> list[Finding]:
    found = []
    options = mount.options
    if "soft" in options or "softerr" in options:
        what, why = f"{mount.point} is mounted soft", "a server that is slow for a while makes writes fail"
        found.append(Finding("fs.nfs_soft", Verdict.LIMITED, what, why, "mount it with the option hard"))
    proto = options.get("proto") or "tcp"
    if proto != "rdma" and not options.get("nconnect"):
        what, why = f"NFS over one {proto} connection", "one connection carries a few GB/s at most, on one core"
        remedy = "mount with nconnect=16, or with proto=rdma where cards and server can"
        found.append(Finding("fs.nfs_connections", Verdict.LIMITED, what, why, remedy))
    sizes = {key: int(options[key] or 0) for key in ("rsize", "wsize") if (options.get(key) or "").isdigit()}
    small = [f"{key}={size}" for key, size in sizes.items() if size < _REQUEST_BYTES]
    if small:
        what, why = f"NFS requests are small: {', '.join(small)}", "each 16 MiB chunk is cut into many calls"
        found.append(Finding("fs.nfs_requests", Verdict.LIMITED, what, why, "mount with rsize=1048576,wsize=1048576"))
    return found
