"""Packages that are built for another torch are named before anything imports them, with the one command that helps."""

from importlib import metadata

import pytest

from ebbtide_serve.vllm_versions.supported import other_builds


@pytest.mark.parametrize(
    ("installed", "named"),
    [
        (
            {"torch": "2.13.0+cpu", "torchvision": "0.28.0", "torchaudio": "2.11.1"},
            ["torchvision 0.28.0", "torchaudio 2.11.1"],
        ),
        (
            {"torch": "2.13.0+cpu", "torchvision": "0.28.0+cpu", "torchcodec": "0.17.0+cu130"},
            ["torchcodec 0.17.0+cu130"],
        ),
        ({"torch": "2.13.0+cpu", "torchvision": "0.28.0+cpu"}, []),
        ({"torch": "2.13.0+cpu"}, []),
        ({"torch": "2.13.0", "torchvision": "0.28.0"}, []),
        ({}, []),
    ],
)
def test_builds_that_do_not_go_together_are_named(
    installed: dict[str, str], named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)
    told = other_builds()
    assert all(one in told for one in named) and bool(told) is bool(named)
    assert not named or "pip uninstall -y torch" in told


def test_what_is_installed_here_goes_together() -> None:
    assert other_builds() == ""
