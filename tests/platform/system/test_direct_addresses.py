"""What is added to NO_PROXY covers our own addresses for each kind of client, and changes nothing else."""

import os
import subprocess
import sys
import urllib.request

import httpx
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from requests.utils import should_bypass_proxies

from ebbtide.system.direct_addresses import NO_PROXY, host_of, reach_directly, without_proxy

OURS = ("http://127.0.0.1:8265/api", "http://localhost:8000/v1", "http://10.20.30.40:8265", "http://head.cluster:8265")
HUB = ("https://huggingface.co/org/model", "http://s3.example.com/bucket", "https://10.99.0.1/")
ADDRESSES = ("10.20.30.40:6379", "http://head.cluster:8265")


@pytest.mark.parametrize("before", [{}, {"NO_PROXY": "a.example"}, {"no_proxy": "a.example, .b.example"}])
def test_requests_urllib_and_httpx_agree(before: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NO_PROXY, "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    reach_directly(*ADDRESSES)
    client = httpx.Client()
    for url in OURS:
        host = httpx.URL(url).host
        assert should_bypass_proxies(url, no_proxy=None), url
        assert urllib.request.proxy_bypass(host), url
        assert client._transport_for_url(httpx.URL(url)) is client._transport, url
    for url in HUB:
        assert not should_bypass_proxies(url, no_proxy=None), url
        assert not urllib.request.proxy_bypass(httpx.URL(url).host), url
        assert client._transport_for_url(httpx.URL(url)) is not client._transport, url
    if before:
        assert should_bypass_proxies("http://a.example/", no_proxy=None)


words = st.text("abc.*/:0123456789- ", max_size=12)


@given(st.lists(words, max_size=4), st.lists(words, max_size=4), st.booleans())
def test_nothing_that_stands_there_is_lost_and_twice_is_once(upper: list[str], lower: list[str], grpc: bool) -> None:
    environ = {"NO_PROXY": ",".join(upper), "no_proxy": ",".join(lower), "HTTP_PROXY": "http://p:1"}
    environ |= {"no_grpc_proxy": "grpc.example"} if grpc else {}
    found = without_proxy(environ, ADDRESSES)
    assert set(found) == {*NO_PROXY, *(["no_grpc_proxy"] if grpc else [])}
    assert found["NO_PROXY"] == found["no_proxy"]
    parts = found["no_proxy"].split(",")
    assert {part.strip() for part in [*",".join(upper + lower).split(",")] if part.strip()} <= set(parts)
    assert {"127.0.0.1", "localhost", "10.20.30.40", "head.cluster"} <= set(parts)
    assert len(set(parts)) == len(parts)
    if grpc:
        assert {"grpc.example", *parts} <= set(found["no_grpc_proxy"].split(","))
    assert without_proxy({**environ, **found}, ADDRESSES) == found


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.1:6379", "10.0.0.1"),
        ("http://head:8265/x", "head"),
        ("ray://head:10001", "head"),
        ("[fd00::1]:6379", "fd00::1"),
        ("head", "head"),
        ("auto", ""),
        ("", ""),
        ("0.0.0.0:8000", ""),
        ("http://[::]:8000", ""),
        ("http://[broken", ""),
    ],
)
def test_the_host_of_an_address(address: str, host: str) -> None:
    assert host_of(address) == host


def test_a_name_of_this_machine_is_no_exception_by_itself() -> None:
    assert os.uname().nodename not in without_proxy({})["NO_PROXY"].split(",")


def test_all_cards_are_ours_and_a_child_inherits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NO_PROXY:
        monkeypatch.setenv(name, "a.example")
    reach_directly()
    out = subprocess.run(
        [sys.executable, "-c", "import os; print(os.environ['no_proxy'])"], capture_output=True, text=True, check=True
    ).stdout
    for cards in psutil.net_if_addrs().values():
        for card in cards:
            if card.family.name == "AF_INET":
                assert card.address in out.strip().split(",")
