"""The published description is true: schemathesis throws requests at the real server and checks every answer.

``EBBTIDE_SCHEMATHESIS_EXAMPLES=2000`` makes a longer run of it; the default takes some 10 s.
"""

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.builders.gateway import bearer, key
from tests.examples import examples
from tests.serve_apps.gateway.fakes import MODEL, Scene, running_gateway

EXAMPLES = int(os.environ.get("EBBTIDE_SCHEMATHESIS_EXAMPLES") or examples(40))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    ignored_auth,
    unsupported_method,
]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Scene]:
    """A gateway with keys and a replica, in a thread with a loop of its own: schemathesis is synchronous."""
    ready, over = threading.Event(), threading.Event()
    scenes: list[Scene] = []

    async def run() -> None:
        async with running_gateway(keys=(key("full"), key("slow", requests_per_minute=1))) as scene:
            await scene.route(await scene.replica())
            scene.arbiter.table.endpoints["other"] = (scene.replicas[0].route,)  # type: ignore[index]
            scenes.append(scene)
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(10)
    yield scenes[0]
    over.set()
    thread.join(10)


@pytest.fixture(scope="module")
def api(gateway: Scene) -> schemathesis.BaseSchema:
    """The description as published."""
    return schemathesis.openapi.from_url(f"{gateway.url}/openapi.json")


@pytest.mark.parametrize(
    ("path", "method", "mode"),
    [
        ("/v1/chat/completions", "POST", GenerationMode.POSITIVE),
        ("/v1/chat/completions", "POST", GenerationMode.NEGATIVE),
        ("/v1/completions", "POST", GenerationMode.POSITIVE),
        ("/v1/completions", "POST", GenerationMode.NEGATIVE),
        ("/v1/models", "GET", GenerationMode.POSITIVE),
        ("/health", "GET", GenerationMode.POSITIVE),
    ],
)
def test_every_answer_is_one_that_the_description_names(
    api: schemathesis.BaseSchema, path: str, method: str, mode: GenerationMode
) -> None:
    operation = api[path][method]

    @hypothesis_settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:  # type: ignore[type-arg] # generic for the type checker only
        if isinstance(case.body, dict) and len(repr(case.body)) % 4 and isinstance(case.body.get("model"), str):
            case.body["model"] = MODEL  # a name that it could not guess, mostly
        case.call_and_validate(headers=bearer("full"), checks=CHECKS, timeout=20)

    ask()


def test_a_key_at_its_limit_answers_as_described(gateway: Scene, api: schemathesis.BaseSchema) -> None:
    operation = api["/v1/chat/completions"]["POST"]
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    statuses = set()
    for _ in range(3):
        case = operation.Case(body=body, media_type="application/json")  # type: ignore[arg-type]
        response = case.call(headers=bearer("slow"), timeout=20)
        case.validate_response(response, checks=[status_code_conformance, response_schema_conformance])
        statuses.add(response.status_code)
    assert statuses == {200, 429}
