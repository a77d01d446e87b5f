"""Paths whose server forgot them: each look fails with ESTALE, which is no kind of "not there"."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def stale_at(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """From now on nobody can look at ``path``."""

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(at: Any = ".", *more: Any, **options: Any) -> Any:
            if not isinstance(at, int) and os.fspath(at) == os.fspath(path):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return real(at, *more, **options)

        return call

    for name in ("stat", "lstat", "listdir", "scandir"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
