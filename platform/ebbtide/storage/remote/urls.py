"""URLs that users give, and the filesystems behind them."""

import re
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs  # type: ignore[import-untyped]

from ebbtide.storage.errors import Refused

# The package that brings a filesystem, where its import says something else or nothing.
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "az", "adl"), "adlfs"),
    **dict.fromkeys(("hf",), "huggingface_hub"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    **dict.fromkeys(("oci", "ocilake"), "ocifs"),
    **dict.fromkeys(("oss",), "ossfs"),
    **dict.fromkeys(("webdav", "dav"), "webdav4"),
    **dict.fromkeys(("hdfs",), "pyarrow"),
    **dict.fromkeys(("smb",), "smbprotocol"),
}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_LOCAL = ("file", "local")


def is_url(text: str) -> bool:
    """Whether this is a URL and not a path."""
    return "://" in text


def local_path(text: str) -> Path | None:
    """The directory that a path or a file:// URL names; None for a URL of another filesystem.

    Raises:
        Refused: empty, or a chain of filesystems.
    """
    if not text or "\0" in text:
        raise Refused("an empty name, or one with a zero byte, names no directory")
    if "::" in text and "://" in text:
        raise Refused("a chain of filesystems with '::' is not supported: name the last of them alone")
    found = _URL.fullmatch(text)
    if found is None:
        return Path(text).expanduser()
    return Path(found[2]) if found[1].lower() in _LOCAL else None


def without_secrets(url: str) -> str:
    """A URL as it may be shown and kept: without user, password and query; harmless in a terminal."""
    found = _URL.fullmatch(url)
    if found is None:
        return url
    place = found[2].partition("?")[0].partition("#")[0]
    host, slash, path = place.partition("/")
    shown = f"{found[1].lower()}://{host.rpartition('@')[2]}{slash}{path}".rstrip("/")
    return shown if shown.isprintable() else ascii(shown)[1:-1]


def filesystem(url: str) -> tuple[Any, str]:
    """The filesystem behind a URL, and the path in it.

    Raises:
        Refused: nobody knows such URLs, a package is missing (says which), or the URL makes no sense.
    """
    found = _URL.fullmatch(url)
    assert found is not None
    protocol = found[1].lower()
    shown = without_secrets(url)
    if protocol in ("http", "https"):
        if "?" in url or "#" in url:
            raise Refused(f"{shown}: a query or fragment cannot be joined with names of files; name the directory")
        options: dict[str, Any] = {"headers": {"Accept-Encoding": "identity"}}  # else lengths are those of archives
    else:
        options = {}
    try:
        fs, path = url_to_fs(url, skip_instance_cache=True, **options)
    except ImportError as error:
        package = _PACKAGES.get(protocol)
        remedy = f"pip install {package}" if package else str(error)
        raise Refused(f"{shown}: {protocol}:// needs a package that is not installed here: {remedy}") from error
    except ValueError as error:
        raise Refused(f"{shown}: {error}") from error
    return fs, str(path)
