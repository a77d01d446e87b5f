"""Parameters as bytes: what is one piece of memory, and what cannot be told from its bytes."""

import pytest
import torch
from torch import nn

from ebbtide_serve.loading.errors import FlatUnusable
from ebbtide_serve.loading.flat.layout import buffers_of, layout_of
from tests.serve_apps.loading.small_model import SmallModel, right


def model_with(**parameters: torch.Tensor) -> nn.Module:
    model = nn.Module()
    for name, data in parameters.items():
        model.register_parameter(name, nn.Parameter(data, requires_grad=False))
    return model


def test_the_layout_has_every_parameter_once_in_the_order_of_memory() -> None:
    found = {one.names: one for one in layout_of(SmallModel(tp=2)).held}
    assert found[("embed.weight",)].spec.shape == (96, 64)
    transposed = found[("out.weight",)]
    assert (transposed.order, transposed.spec.shape) == ((1, 0), (32, 64))
    assert found[("none",)].memory.numel() == 0
    assert found[("cache_scale",)].spec.shape == ()
    assert layout_of(SmallModel(tp=2)).size_bytes == 2 * (96 * 64 + 96 * 64 + 64 * 32 + 64 + 1)


def test_two_parameters_over_one_memory_are_stored_once() -> None:
    data = torch.zeros(4, 3)
    (held,) = layout_of(model_with(a=data, b=data)).held
    assert (held.names, held.spec.name) == (("a", "b"), "a")


def test_parameters_without_memory_are_not_at_one_place() -> None:
    held = layout_of(model_with(a=torch.empty(0, 3), b=torch.empty(2, 0))).held
    assert [(one.names, one.spec.shape) for one in held] == [(("a",), (0, 3)), (("b",), (2, 0))]


def test_bytes_written_by_a_layout_are_the_parameters() -> None:
    source, target = right(), SmallModel()
    memory = layout_of(target).memory()
    for name, data in layout_of(source).memory().items():
        memory[name].copy_(data)
    assert torch.equal(target.out.weight, source.out.weight)
    assert torch.equal(target.qkv.weight, source.qkv.weight)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "none", nn.Parameter(torch.empty(0, 63).bfloat16(), requires_grad=False)),
        lambda model: setattr(model.norm, "weight", nn.Parameter(torch.zeros(64), requires_grad=False)),
        lambda model: setattr(model.out, "weight", nn.Parameter(torch.zeros(64, 64).bfloat16(), requires_grad=False)),
        lambda model: setattr(model, "another", nn.Parameter(torch.zeros(1).bfloat16(), requires_grad=False)),
        lambda model: delattr(model, "cache_scale"),
        lambda model: setattr(model.norm, "weight", nn.Parameter(model.qkv.weight.data[0], requires_grad=False)),
    ],
    ids=["shape", "dtype", "order", "more", "less", "sharing"],
)
def test_layouts_that_differ_have_other_digests(change: object) -> None:
    model = SmallModel()
    before = layout_of(model).digest
    assert before == layout_of(SmallModel()).digest
    change(model)  # type: ignore[operator]
    try:
        assert layout_of(model).digest != before
    except FlatUnusable as error:
        assert "overlap" in str(error) or "one place" in str(error)


class WithState(torch.Tensor):
    """A tensor that is more than its memory."""


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"w": torch.zeros(4, 4)[:, :2]}, "w has gaps"),
        ({"w": torch.zeros(1).expand(4)}, "w has gaps or repetitions"),
        ({"w": torch.zeros(3, device="meta")}, "w has no memory"),
        ({"w": torch.zeros(3, dtype=torch.complex128)}, "complex128"),
        ({"w": torch.zeros(3).to_sparse()}, "w is a Tensor with state|layout|plain memory"),
        ({"w": torch.zeros(3).as_subclass(WithState)}, "WithState"),
        (dict(zip("ab", torch.zeros(6).unfold(0, 4, 2), strict=True)), "a and b overlap"),
        ({"a": (t := torch.zeros(4)), "b": t.view(2, 2)}, "a and b lie at one place"),
        ({"a": (u := torch.zeros(4)), "b": u.view(torch.int32)}, "a and b lie at one place"),
    ],
    ids=["gaps", "repeated", "meta", "dtype", "sparse", "subclass", "overlap", "other shape", "other type"],
)
def test_what_its_bytes_cannot_tell_is_refused_by_name(parameters: dict[str, torch.Tensor], told: str) -> None:
    model = nn.Module()
    for name, data in parameters.items():
        # As vLLM has them: a Parameter of a class of its own keeps the class of its data.
        floating = data.is_floating_point() or data.is_complex()
        model.register_parameter(name, nn.Parameter(data, requires_grad=False) if floating else _as_parameter(data))
    with pytest.raises(FlatUnusable, match=told):
        layout_of(model)


def _as_parameter(data: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(data, requires_grad=False)


def test_buffers_are_found_by_name_or_refused() -> None:
    model = SmallModel()
    assert buffers_of(model, ["rope"])["rope"] is not None
    with pytest.raises(FlatUnusable, match="no buffer nope"):
        buffers_of(model, ["rope", "nope"])
    model.register_buffer("thin", torch.zeros(4, 4)[:, :2])
    with pytest.raises(FlatUnusable, match="thin is not contiguous"):
        buffers_of(model, ["thin"])
