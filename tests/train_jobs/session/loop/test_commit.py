"""The copies that a checkpoint is written from; what is committed when, tests of the session tell."""

from typing import Any

import pytest
import torch

from ebbtide_train.session.loop import commit


def test_copies_from_a_gpu_go_to_page_locked_memory_and_others_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    locked: list[int] = []

    class Recorded:
        def __call__(self, _address: int, size_bytes: int) -> None:
            locked.append(size_bytes)

    monkeypatch.setattr(commit, "Pinning", Recorded)
    for device, sizes in (("cpu", []), ("cuda", [2 << 20])):
        monkeypatch.setattr(commit, "_copies", {})
        copies = commit.host_copies(torch.device(device))
        assert commit.host_copies(torch.device(device)) is copies, "what one copy has touched, the next one uses again"
        state: dict[str, Any] = {"x": torch.arange(5)}
        for _ in range(2):
            copy = copies.stage(state)
            assert torch.equal(copy.state["x"], state["x"])
            copy.release()
        assert locked == sizes
