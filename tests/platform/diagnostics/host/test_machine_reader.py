"""The reader of a machine: what cannot be read is nothing, never an error."""

import errno
import os
from pathlib import Path

import pytest

from ebbtide.diagnostics.host.machine_reader import Machine
from tests.platform.diagnostics.machines import Tree, machine


def test_what_is_not_there_is_nothing(tmp_path: Path) -> None:
    node = machine(Tree(tmp_path))
    assert node.text("/proc/none") is None and node.content("/proc") is None
    assert node.names("/sys/none") == () and node.link_name("/sys/none") is None
    assert not node.exists("/x") and not node.readable("/x") and node.find("/usr/*/x") is None


def test_links_are_followed_within_the_root(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.file("/sys/devices/a/b/file", "text\0more\n")
    tree.link("/sys/class/x", "/sys/devices/a/b")
    node = machine(tree)
    assert node.resolved("/sys/class/x") == "/sys/devices/a/b"
    assert node.link_name("/sys/class/x") == "b"
    assert node.text("/sys/class/x/file") == "text more"
    assert node.find("/none*", "/sys/*/a/b/f*") == "/sys/devices/a/b/file"


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.file("/proc/x", b"\xff\xfe\n")
    assert machine(tree).text("/proc/x") == "\ufffd\ufffd"


def test_this_machine_answers() -> None:
    node = Machine()
    assert node.uname().release == os.uname().release
    assert node.importable("json") and not node.importable("no_such_module") and not node.importable("json.none.x")
    assert node.io_uring_errno() in (errno.EFAULT, errno.EINVAL, errno.ENOSYS, errno.EPERM)
    assert all(not address.startswith("fe80") for addresses in node.addresses().values() for address in addresses)
    limit = node.memlock_bytes()
    assert limit is None or limit >= 0
    assert node.resolved("/proc/self/../self") == f"/proc/{os.getpid()}"


def test_a_root_that_is_a_link_is_no_trap(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to("real")
    tree = Tree(tmp_path / "root")
    tree.file("/a/b", "x")
    tree.link("/l", "/a")
    assert machine(tree).resolved("/l") == "/a"


@pytest.mark.parametrize("path", ["/proc/self/mem", "/proc/kmsg/none"])
def test_files_that_refuse_are_nothing(path: str) -> None:
    assert Machine().text(path) is None
