"""Evicting tensors in place and bringing them back."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from ebbtide.snapshot.errors import NotEvictable, PoolTooSmall
from ebbtide.snapshot.eviction.host_pool import HostPool
from ebbtide.snapshot.eviction.tensor_eviction import Evicted, Stage, copy_out, discard, evict, plan, tensors_in


def named(*tensors: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    return [(f"t{index}", tensor) for index, tensor in enumerate(tensors)]


def test_everything_comes_back_bit_for_bit_through_every_view() -> None:
    weight = nn.Parameter(torch.randn(5, 7))
    tied = weight.data[1:3].t()
    half = torch.randn(33).to(torch.bfloat16)
    flag = torch.tensor(True)
    before = [tensor.clone() for tensor in (weight, tied, half, flag)]
    checked = plan(named(weight, tied, half, flag))
    pool = HostPool(checked.size_bytes)
    away = evict(checked, pool)
    assert [t.untyped_storage().nbytes() for t in (weight, tied, half, flag)] == [0, 0, 0, 0]
    assert all(torch.equal(away.in_pool(t), b) for t, b in zip((weight, tied, half, flag), before, strict=True))
    away.restore()
    assert all(torch.equal(t, b) for t, b in zip((weight, tied, half, flag), before, strict=True))
    tied.zero_()
    assert weight[1:3].abs().sum() == 0, "the view must still look into the parameter"


def test_a_storage_shared_by_many_tensors_is_counted_once() -> None:
    layer = nn.Linear(64, 64, bias=False)
    other = nn.Linear(64, 64, bias=False)
    other.weight = layer.weight
    checked = plan([*layer.named_parameters(), *other.named_parameters(), ("view", layer.weight.data[3])])
    assert len(checked.places) == 1
    assert checked.size_bytes == 64 * 64 * 4


def test_training_goes_on_as_if_nothing_had_happened() -> None:
    def run(evict_at: set[int]) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 32), nn.Dropout(0.2), nn.Linear(32, 50))
        optimizer = torch.optim.AdamW(model.parameters())
        losses = []
        for step in range(8):
            loss = model(torch.arange(50)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
            if step in evict_at:
                state = [item for value in optimizer.state.values() for item in tensors_in("s", value)]
                checked = plan([*model.named_parameters(), *state])
                evict(checked, HostPool(checked.size_bytes)).restore()
        return losses

    assert run(set()) == run({1, 2, 5})


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda tmp: torch.from_numpy(np.zeros(8)), "clone"),
        (lambda tmp: torch.zeros(8).share_memory_(), "clone"),  # type: ignore[no-untyped-call]
        (lambda tmp: torch.from_file(str(tmp / "f"), shared=True, size=8), "clone"),
        (lambda tmp: torch.zeros(8).to_sparse(), "stop and restart"),
    ],
)
def test_what_cannot_leave_is_refused_by_name_before_anything_moves(
    tmp_path: Path, make: "object", remedy: str
) -> None:
    good = torch.randn(8)
    bad = make(tmp_path)  # type: ignore[operator]
    with pytest.raises(NotEvictable, match=f"(?s)weird one.*{remedy}"):
        plan([("good", good), ("weird one", bad)])
    assert good.untyped_storage().nbytes() == 32


def test_a_gradient_that_is_left_is_refused_with_the_remedy() -> None:
    parameter = nn.Parameter(torch.ones(3))
    parameter.sum().backward()  # type: ignore[no-untyped-call]
    with pytest.raises(NotEvictable, match=r"zero_grad\(set_to_none=True\)"):
        plan([("p", parameter)])


def test_a_pool_that_is_too_small_moves_nothing() -> None:
    tensor = torch.ones(1 << 20)
    with pytest.raises(PoolTooSmall, match="4194304"):
        evict(plan(named(tensor)), HostPool(4096))
    assert tensor.sum() == 1 << 20


def test_discarding_frees_without_keeping() -> None:
    tensor = torch.ones(100)
    discard(plan(named(tensor)))
    assert tensor.untyped_storage().nbytes() == 0


def test_tensors_are_found_in_nested_containers() -> None:
    a, b = torch.ones(1), torch.ones(2)
    assert [name for name, _ in tensors_in("x", {"k": [a, (b, 3)], "n": None})] == ["x.k.0", "x.k.1.0"]


def stage_of(evicted: Evicted) -> Stage:
    """A call, since a type checker believes that an attribute stays what it was compared with."""
    return evicted.stage


def test_what_was_copied_is_still_there_until_it_is_freed() -> None:
    """Several ranks agree between the two."""
    tensor = torch.randn(100)
    before, checked = tensor.clone(), plan(named(tensor))
    evicted = copy_out(checked, HostPool(checked.size_bytes))
    assert stage_of(evicted) is Stage.COPIED and torch.equal(tensor, before)
    with pytest.raises(ValueError, match="copied cannot become back"):
        evicted.restore()
    evicted.free()
    assert tensor.untyped_storage().nbytes() == 0
    with pytest.raises(ValueError, match="away cannot become away"):
        evicted.free()
    evicted.restore()
    assert stage_of(evicted) is Stage.BACK and torch.equal(tensor, before)


def test_a_tensor_that_is_others_inside_is_refused_by_its_kind() -> None:
    """As DTensor is (FSDP2), and quantized weights."""
    with pytest.raises(NotEvictable, match=r"weird is a TwoTensor.*stop and restart"):
        plan([("weird", TwoTensor(torch.ones(2), torch.ones(2)))])  # type: ignore[no-untyped-call]


def test_pinned_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is none without a GPU."""
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)
    with pytest.raises(NotEvictable, match="buffer is in pinned memory"):
        plan([("buffer", torch.ones(2))])


def test_a_lazy_view_is_not_taken_for_its_storage() -> None:
    tensor = torch.randn(4, dtype=torch.complex64)
    checked = plan(named(tensor))
    assert checked.holds(tensor) and not checked.holds(tensor.conj()) and not checked.holds(tensor.conj().imag)
