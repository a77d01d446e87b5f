"""URLs: nothing secret is shown, and what cannot be used is told in one sentence."""

from pathlib import Path

import pytest

from ebbtide.storage.errors import Refused
from ebbtide.storage.models.sources.local_source import LocalSource
from ebbtide.storage.models.sources.remote_source import RemoteSource
from ebbtide.storage.models.sources.source_factory import open_source
from ebbtide.storage.remote.urls import filesystem, local_path, without_secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/models/x/", "s3://bucket/models/x"),
        ("S3://key:secret@bucket/x", "s3://bucket/x"),
        ("https://user:pass@host/x?X-Amz-Signature=abc", "https://host/x"),
        ("https://host/x#frag", "https://host/x"),
        ("sftp://u:p@host:22/x@y", "sftp://host:22/x@y"),
        ("s3://b/\x1b[31mred", "s3://b/\\x1b[31mred"),
        ("/plain/path", "/plain/path"),
    ],
)
def test_a_url_is_shown_without_user_password_and_query(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


def test_paths_and_file_urls_are_local(tmp_path: Path) -> None:
    assert local_path("relative/x") == Path("relative/x")
    assert local_path(f"file://{tmp_path}") == local_path(str(tmp_path)) == tmp_path
    assert local_path("~/x") == Path.home() / "x"
    assert local_path("s3://b/x") is None
    assert isinstance(open_source(f"file://{tmp_path}"), LocalSource)
    assert isinstance(open_source("memory://x"), RemoteSource)


@pytest.mark.parametrize("text", ["", "a\0b", "simplecache::s3://b/x", "filecache::file:///etc", "zip://a::file://b"])
def test_what_names_no_directory_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        open_source(text)


@pytest.mark.parametrize(
    ("url", "package"),
    [
        ("s3://b/x", "s3fs"),
        ("gs://b/x", "gcsfs"),
        ("gcs://b/x", "gcsfs"),
        ("abfs://b/x", "adlfs"),
        ("oss://b", "ossfs"),
    ],
)
def test_a_missing_package_is_named(url: str, package: str) -> None:
    pytest.importorskip("fsspec")
    try:
        __import__(package)
    except ImportError:
        with pytest.raises(Refused, match=f"pip install {package}$"):
            open_source(url)
    else:
        pytest.skip(f"{package} is installed here")


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(Refused, match="nonsense://x: Protocol not known"):
        open_source("nonsense://x")


def test_a_password_is_in_no_message() -> None:
    for url in (
        "nonsense://me:hunter2@x",
        "zip://me:hunter2@x::file://b",
        "https://me:hunter2@x/y?z",
        "s3://a:hunter2@b",
    ):
        try:
            open_source(url)
        except Refused as error:
            assert "hunter2" not in str(error), url


@pytest.mark.parametrize("url", ["https://host/x?y=1", "http://host/x#y"])
def test_a_query_is_refused_since_names_of_files_cannot_follow_it(url: str) -> None:
    with pytest.raises(Refused, match="query"):
        filesystem(url)
