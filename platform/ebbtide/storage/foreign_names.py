"""Names that operating systems, file servers and desktops leave in any folder that they see; never names of ours."""

import re

_NAMES = frozenset(
    name.casefold()
    for name in (
        *("Thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", "$RECYCLE.BIN", "System Volume Information"),
        *(".DS_Store", ".AppleDouble", ".apdisk", ".fseventsd", ".Spotlight-V100", ".TemporaryItems", ".Trashes"),
        *("lost+found", ".snapshot", ".snapshots", "~snapshot", "#snapshot", ".zfs"),  # ext4, NetApp, Synology, ZFS
        *("@eaDir", "#recycle", ".recycle"),  # Synology, Samba
    )
)
# A file that was removed while a process has it open (NFS, FUSE), Apple's second half of a file, a user's trash.
_PATTERNS = re.compile(r"\.nfs[0-9A-Fa-f]+|\.fuse_hidden[0-9A-Fa-f]+|\._.*|\.Trash-[0-9]+", re.DOTALL)


def is_foreign(name: str) -> bool:
    """Whether an entry of a folder is such a thing, by its name alone, in small letters or large ones."""
    return name.casefold() in _NAMES or _PATTERNS.fullmatch(name) is not None
