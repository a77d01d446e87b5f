"""What answers GET answers HEAD: load balancers ask so whether a gateway lives."""

import httpx
import pytest

from tests.serve_apps.gateway.fakes import running_gateway


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="the routes are declared for GET alone")
@pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics"])
async def test_head_is_answered_as_get_is(path: str) -> None:
    async with running_gateway() as scene, httpx.AsyncClient(base_url=scene.url, trust_env=False) as http:
        got, head = await http.get(path), await http.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
