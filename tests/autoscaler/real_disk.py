"""A filesystem of its own for a test to freeze, fill, turn read-only or take away: ext4 in a file, on a loop device."""

import contextlib
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

WAIT_S = 30.0


class CannotMount(RuntimeError):
    """This machine lets nobody mount: not root, or no loop devices."""


@dataclass
class RealDisk:
    """Mounted at ``path``; :meth:`give_back` undoes everything, whatever the test did."""

    image: Path
    path: Path
    frozen: bool = False
    filler: list[Path] = field(default_factory=list)

    @classmethod
    def make(cls, folder: Path, *, mib: int = 24) -> "RealDisk":
        """A new one; raises CannotMount."""
        disk = cls(folder / "disk.img", folder / "disk")
        disk.path.mkdir()
        with disk.image.open("wb") as file:
            file.truncate(mib << 20)
        try:
            run("mkfs.ext4", "-q", "-m", "0", str(disk.image))
            disk.mount()
        except (OSError, subprocess.CalledProcessError) as error:
            raise CannotMount(f"mounting is not permitted here, or there are no loop devices: {error}") from error
        return disk

    def mount(self) -> None:
        """Mount it (again)."""
        run("mount", "-o", "loop,errors=remount-ro", str(self.image), str(self.path))

    def take_away(self) -> None:
        """Unmount it under everybody; what is open stays usable and leads nowhere that a path leads."""
        run("umount", "--lazy", str(self.path))

    def mount_again(self) -> None:
        """Unmount it in good order, which fails while a file is open there, and mount it again."""
        deadline_s = time.monotonic() + WAIT_S
        while subprocess.run(["umount", str(self.path)], capture_output=True, timeout=WAIT_S).returncode != 0:
            assert time.monotonic() < deadline_s, "somebody keeps a file open there"
            time.sleep(0.05)
        self.mount()

    def freeze(self) -> None:
        """From now on every write and fsync hangs; reads go on."""
        run("fsfreeze", "--freeze", str(self.path))
        self.frozen = True

    def thaw(self) -> None:
        """Let them go on."""
        if self.frozen:
            run("fsfreeze", "--unfreeze", str(self.path))
            self.frozen = False

    def fill(self) -> None:
        """Leave no block free."""
        filler = self.path / "filler"
        with filler.open("wb", buffering=0) as file:
            for _ in range(4):  # ext4 holds blocks back until what it has promised is on the medium
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(4096))
                os.fsync(file.fileno())
        self.filler.append(filler)

    def make_room(self) -> None:
        """Undo :meth:`fill`."""
        while self.filler:
            self.filler.pop().unlink(missing_ok=True)

    def turn_read_only(self) -> None:
        """As after an error of the medium: every write fails with EROFS, open files' too."""
        device = run("findmnt", "-no", "SOURCE", str(self.path)).strip().rpartition("/")[2]
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")

    def give_back(self) -> None:
        """Unfreeze and unmount."""
        self.thaw()
        while subprocess.run(["umount", "--lazy", str(self.path)], capture_output=True, timeout=WAIT_S).returncode == 0:
            pass


def run(*command: str) -> str:
    """Run a command; raises CalledProcessError or OSError."""
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT_S).stdout
