"""What a node says of itself for the cost model: read now and then, and believed only where it can be."""

import socket
from pathlib import Path

from ebbtide.agent.means import READ_EVERY_S, MeansReader
from ebbtide.client.messages import NodeMeans
from ebbtide.client.runtime_dir import HELPER_SOCKET
from ebbtide.snapshot.rates_file import FILE_NAME, write_rates
from ebbtide.snapshot.tiers import Lane, Rate


def test_rates_memory_and_the_helper_are_told_and_read_again_after_a_while(tmp_path: Path) -> None:
    now_s, free = [0.0], [7]
    read = MeansReader(tmp_path, available=lambda: free[0], clock_s=lambda: now_s[0])
    assert read() == NodeMeans(7, (), helper=False)
    free[0] = 8
    write_rates(tmp_path, {Lane.MEMCPY_OUT: Rate(2e9, "measured", measured=True)})
    with socket.socket(socket.AF_UNIX) as helper:
        helper.bind(str(tmp_path / HELPER_SOCKET))
        assert read() == NodeMeans(7, (), helper=False)
        now_s[0] += READ_EVERY_S
        assert read() == NodeMeans(8, (("memcpy_out", 2e9),), helper=True)
    (tmp_path / FILE_NAME).write_text("damaged")
    now_s[0] += READ_EVERY_S
    assert read().rates == ()
