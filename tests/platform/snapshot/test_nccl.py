"""NCCL's settings: what is pinned, what is recorded, and what keeps a process from being frozen."""

import pytest

from ebbtide.snapshot.nccl import DEFAULTS, multicast, nccl_settings


def test_what_is_pinned_can_be_frozen_and_is_recorded_with_what_an_author_has_set() -> None:
    assert multicast(DEFAULTS) == "" and nccl_settings(DEFAULTS) == DEFAULTS
    assert DEFAULTS == {"NCCL_NVLS_ENABLE": "0", "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    assert nccl_settings({"NCCL_ALGO": "Tree", "NCCL_DEBUG": "INFO", "PATH": "/bin"}) == {"NCCL_ALGO": "Tree"}


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "(NCCL_NVLS_ENABLE is not set)"),
        ({"NCCL_NVLS_ENABLE": ""}, "(NCCL_NVLS_ENABLE is not set)"),
        ({"NCCL_NVLS_ENABLE": "1"}, "(NCCL_NVLS_ENABLE=1)"),
        ({"NCCL_NVLS_ENABLE": "2"}, "(NCCL_NVLS_ENABLE=2)"),
    ],
)
def test_nvls_that_is_not_switched_off_may_be_used(environ: dict[str, str], said: str) -> None:
    assert said in multicast(environ)
