"""What a node says of itself for the cost model: read now and then, and believed only where it can be."""

import socket
from pathlib import Path

from ebbtide.agent.node_capabilities import READ_EVERY_S, CapabilityReader
from ebbtide.client.messages import NodeCapabilities
from ebbtide.snapshot.rates_file import FILE_NAME, write_rates
from ebbtide.snapshot.tiers import Lane, Rate
from ebbtide.system.runtime_dir import HELPER_SOCKET
from tests.platform.helper.trees import helping


def test_rates_and_memory_are_told_and_read_again_after_a_while(tmp_path: Path) -> None:
    now_s, free = [0.0], [7]
    read = CapabilityReader(tmp_path, available=lambda: free[0], clock_s=lambda: now_s[0])
    assert read() == NodeCapabilities(7, (), helper=False)
    free[0] = 8
    write_rates(tmp_path, {Lane.MEMCPY_OUT: Rate(2e9, "measured", measured=True)})
    assert read() == NodeCapabilities(7, (), helper=False)
    now_s[0] += READ_EVERY_S
    assert read() == NodeCapabilities(8, (("memcpy_out", 2e9),), helper=False)
    (tmp_path / FILE_NAME).write_text("damaged")
    now_s[0] += READ_EVERY_S
    assert read().rates == ()


def test_a_helper_counts_once_it_has_answered_and_no_longer_than_it_answers(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    now_s = [0.0]
    read = CapabilityReader(tmp_path.resolve(), clock_s=lambda: now_s[0])

    def after_a_while() -> bool:
        now_s[0] += READ_EVERY_S
        read()
        read._helper.wait()
        return read().helper

    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / HELPER_SOCKET))
    assert not after_a_while(), "a file that nobody listens at"
    with helping(tmp_path.resolve(), None, "--fake-driver", str(tmp_path / "driver")) as running:
        assert running.socket == tmp_path.resolve() / HELPER_SOCKET
        assert after_a_while()
    assert not after_a_while()
