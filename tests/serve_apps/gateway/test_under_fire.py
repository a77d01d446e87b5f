"""What a single client, or ten thousand, can do to a gateway over raw sockets."""

import asyncio
import contextlib
import json
import resource
import socket
import sys
import time

import httpx
import psutil
import pytest

from ebbtide_serve.gateway import server
from tests.builders.gateway import answer_to, connect, request, status_of
from tests.serve_apps.gateway.fakes import Scene, chat, running_gateway, until

CHAT = "/v1/chat/completions"
THIS = psutil.Process()


# ---- headers


@pytest.mark.proves(
    "all headers together are bounded in size",
    "headers are bounded in number",
    "headers that are not complete are bounded in size",
)
async def test_headers_are_bounded_in_number_and_size_however_they_come() -> None:
    async with running_gateway(max_headers=20, max_header_bytes=4096, header_timeout_s=1.0) as scene:
        start = b"GET /health HTTP/1.1\r\nhost: x\r\n"
        many = start + b"".join(b"h%d: x\r\n" % number for number in range(30)) + b"\r\n"
        long = start + b"a: " + b"x" * 5000 + b"\r\n\r\n"
        several = start + b"".join(b"h%d: %s\r\n" % (number, b"x" * 600) for number in range(8)) + b"\r\n"
        target = b"GET /health?" + b"q" * 5000 + b" HTTP/1.1\r\nhost: x\r\n\r\n"
        for raw in (many, long, several, target):
            answer = await answer_to(scene, raw)
            assert status_of(answer) == 431 and b"headers_too_large" in answer, raw[:60]
        assert status_of(await answer_to(scene, start + b"a: " + b"x" * 3000 + b"\r\n\r\n")) == 200
        reader, writer = await connect(scene)  # one header without an end, a piece at a time
        writer.write(start + b"a: ")
        for _ in range(5):  # one more would meet a closed connection, and its reset might overtake the answer
            writer.write(b"x" * 900)
            await asyncio.sleep(0.02)
        assert status_of(await asyncio.wait_for(reader.read(), 5)) == 431
        writer.close()


@pytest.mark.proves("a request whose rest is bad does not go on")
async def test_trailers_count_as_headers(scene: Scene) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    trailers = b"".join(b"t%d: x\r\n" % number for number in range(200))
    answer = await answer_to(scene, head.encode() + b"2\r\n{}\r\n0\r\n" + trailers + b"\r\n")
    assert status_of(answer) in (400, 431)


# ---- targets, versions, pipelines

NEVER_REACHED = [
    "/invocations",
    "/v1/../invocations",
    "/v1/%2e%2e/invocations",
    "//invocations",
    "/v1//chat/completions",
    "//v1/chat/completions",
    "/v1/chat/completions/",
    "/v1/chat/completions;x",
    "/V1/chat/completions",
    "/v1/chat/./completions",
    "/v1/chat/completions%00",
    "/v1/chat/completions%0d%0ax-evil:1",
    "/ping",
    "/version",
    "/sleep",
    "/wake_up",
    "/is_sleeping",
    "/collective_rpc",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/server_info",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/pause",
    "/resume",
    "/tokenize",
    "/detokenize",
    "/tokenizer_info",
    "/start_profile",
    "/stop_profile",
    "/load",
    "/pooling",
    "/classify",
    "/score",
    "/rerank",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/audio/transcriptions",
    "/scale_elastic_ep",
    "/inference/v1/generate",
    "http://127.0.0.1/invocations",
    "*",
]


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_no_path_but_the_two_routes_ever_reaches_a_replica(scene: Scene, method: str) -> None:
    replica = await scene.replica()
    await scene.route(replica)
    body = json.dumps(chat()).encode()
    for target in NEVER_REACHED:
        raw = request(body, path=target).replace(b"POST ", method.encode() + b" ", 1)
        answer = await answer_to(scene, raw)
        assert status_of(answer) in (400, 404, 405), (target, answer[:80])
        assert b'"error"' in answer
    assert replica.bodies == []


async def test_an_absolute_or_escaped_target_means_the_route_itself_and_the_replica_sees_our_path(scene: Scene) -> None:
    replica = await scene.replica()
    await scene.route(replica)
    for target in (f"http://elsewhere{CHAT}", "/v1/chat/%63ompletions", f"{CHAT}?a=/sleep"):
        answer = await answer_to(scene, request(json.dumps(chat()).encode(), path=target))
        assert status_of(answer) == 200, target
        assert replica.seen[-1].raw_path == CHAT


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /health HTTP/2.0\r\nhost: x\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"\x00" * 100,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /health HTTP/1.1\nhost x\n\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1e3\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"CONNECT evil:443 HTTP/1.1\r\nhost: evil\r\n\r\n",
        b"GET /caf\xc3\xa9 HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
    ids=lambda raw: repr(raw[:24]),
)
@pytest.mark.proves("only HTTP/1.0 and 1.1 are spoken")
async def test_malformed_http_is_a_clear_4xx_and_the_gateway_lives_on(
    scene: Scene, http: httpx.AsyncClient, raw: bytes
) -> None:
    answer = await answer_to(scene, raw, 2.0)
    assert 400 <= status_of(answer) < 500, answer[:100]
    assert (await http.get("/health")).status_code == 200


@pytest.mark.proves("there is no stream over HTTP/1.0")
async def test_http_1_0_gets_whole_answers_and_is_told_what_streams_need(scene: Scene) -> None:
    await scene.route(await scene.replica())
    assert status_of(await answer_to(scene, b"GET /health HTTP/1.0\r\n\r\n")) == 200
    for stream, status in [(False, 200), (True, 426)]:
        raw = request(json.dumps(chat(stream=stream)).encode()).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        answer = await answer_to(scene, raw)
        assert status_of(answer) == status and b"transfer-encoding" not in answer


@pytest.mark.proves("only a few pipelined requests wait")
async def test_pipelined_requests_are_answered_in_order_and_too_many_are_refused(scene: Scene) -> None:
    replica = await scene.replica(token_every_s=0.01)
    await scene.route(replica)
    one = request(json.dumps(chat()).encode())
    reader, writer = await connect(scene)
    writer.write(one + b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" + one)
    answer = b""
    while answer.count(b"HTTP/1.1 200") < 3 or answer.count(b"usage") < 2:
        part = await asyncio.wait_for(reader.read(65536), 5)
        assert part, "closed"
        answer += part
    assert answer.index(b'"usage"') < answer.index(b'"ok"') < answer.rindex(b'"usage"')
    writer.close()
    reader, writer = await connect(scene)
    writer.write(one * 50)
    await asyncio.wait_for(reader.read(), 5)
    await until(lambda: replica.running == 0)
    assert len(replica.bodies) <= 3  # none or one of the fifty
    writer.close()


@pytest.mark.proves("a client that goes ends all of its pipelined requests")
async def test_a_client_that_goes_while_it_pipelines_frees_its_replica(scene: Scene) -> None:
    replica = await scene.replica(tokens=1000, token_every_s=0.05)
    await scene.route(replica)
    _, writer = await connect(scene)
    writer.write(request(json.dumps(chat()).encode()) * 3)
    await until(lambda: replica.running == 1)
    writer.transport.abort()
    await until(lambda: replica.running == 0, 1.0)
    await until(lambda: scene.traffic.inflight == 0)
    assert len(replica.bodies) == 1


# ---- readers


@pytest.mark.proves("a client that reads nothing is cut off")
async def test_a_client_that_does_not_read_is_cut_off_and_frees_its_replica() -> None:
    async with running_gateway(client_stall_s=0.5) as scene:
        replica = await scene.replica(tokens=400_000)  # about 80 MB of events
        await scene.route(replica)
        before = THIS.memory_info().rss
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", scene.server.port))
        raw.sendall(request(json.dumps(chat(stream=True)).encode()))
        await until(lambda: replica.running == 1)
        begun_s = time.monotonic()
        await until(lambda: replica.running == 0, 30.0)
        assert time.monotonic() - begun_s < 20.0
        await until(lambda: scene.traffic.inflight == 0 and scene.traffic.failed == 1)
        assert THIS.memory_info().rss - before < 20 << 20
        raw.close()


async def test_a_client_that_reads_slowly_but_reads_gets_everything() -> None:
    async with running_gateway(client_stall_s=0.6) as scene:
        await scene.route(await scene.replica(tokens=15_000))  # 3 MB
        reader, writer = await connect(scene)
        writer.write(request(json.dumps(chat(stream=True)).encode()))
        received = 0
        last = b""
        while not last.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            part = await reader.read(65536)
            assert part, "cut off"
            received += len(part)
            last = (last + part)[-64:]
            await asyncio.sleep(0.03)
        assert received > 2_000_000
        writer.close()


@pytest.mark.proves("a replica that waits for a slow client may be silent")
async def test_a_client_that_pauses_for_longer_than_a_replica_may_be_silent_loses_nothing() -> None:
    """While nobody reads, the replica waits to be read: that is no silence of its own."""
    async with running_gateway(replica_silence_s=0.4, client_stall_s=20.0) as scene:
        await scene.route(await scene.replica(tokens=30_000))  # 6 MB: more than all buffers on the way hold
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        raw.connect(("127.0.0.1", scene.server.port))
        raw.sendall(request(json.dumps(chat(stream=True)).encode()))
        await asyncio.sleep(2.5)
        assert scene.traffic.inflight == 1, "it is not over, and nobody was told of a lost replica"
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        last = b""
        while not last.endswith(b"0\r\n\r\n"):
            part = await asyncio.wait_for(loop.sock_recv(raw, 1 << 20), 20)
            assert part, "cut off"
            last = (last + part)[-200:]
        assert b"data: [DONE]" in last
        raw.close()


async def test_an_answer_that_nobody_fetches_does_not_stay_behind() -> None:
    """Whole answers larger than the socket takes, to clients that asked and never read."""
    async with running_gateway(client_stall_s=0.4, idle_timeout_s=0.4) as scene:
        await scene.route(await scene.replica(tokens=300_000))
        clients = []
        for _ in range(3):
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.connect(("127.0.0.1", scene.server.port))
            raw.sendall(request(json.dumps(chat()).encode()))
            clients.append(raw)
        await until(lambda: scene.traffic.completed == 3, 20)
        assert scene.server._server is not None
        connections = scene.server._server.server_state.connections
        await until(lambda: not connections, 5.0)
        for raw in clients:
            raw.close()


# ---- storms


@pytest.mark.proves("a gateway has no more connections than it may")
async def test_beyond_the_limit_a_connection_is_told_503_at_once_and_places_come_back() -> None:
    async with running_gateway(max_connections=5) as scene:
        idle = [await connect(scene) for _ in range(5)]
        answer = await answer_to(scene, b"")
        assert status_of(answer) == 503 and b"too_many_connections" in answer and b"retry-after: 1" in answer
        for _, writer in idle:
            writer.close()
        await asyncio.sleep(0.1)
        assert status_of(await answer_to(scene, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")) == 200


async def test_a_storm_of_bad_clients_leaves_no_descriptor_and_little_memory(
    http: httpx.AsyncClient, scene: Scene
) -> None:
    await scene.route(await scene.replica())
    good = request(json.dumps(chat(stream=True)).encode())
    bad = [good[:-5], good[:40], b"\x00garbage\r\n\r\n", b"", good, good * 3, good.replace(b"length: ", b"length: 9")]

    async def wave() -> None:
        async def one(number: int) -> None:
            with contextlib.suppress(ConnectionError, TimeoutError):
                reader, writer = await connect(scene)
                writer.write(bad[number % len(bad)])
                if number % 3:
                    async with asyncio.timeout(0.05):
                        await reader.read(100)
                if number % 2:
                    writer.transport.abort()
                else:
                    writer.close()

        await asyncio.gather(*[one(number) for number in range(200)])
        await until(lambda: scene.traffic.held == scene.traffic.inflight == 0)
        assert (await http.post(CHAT, json=chat())).status_code == 200

    await wave()
    await asyncio.sleep(0.3)
    descriptors, memory = THIS.num_fds(), THIS.memory_info().rss
    for _ in range(5):
        await wave()
    await asyncio.sleep(0.3)
    await until(lambda: THIS.num_fds() <= descriptors + 5)
    assert THIS.memory_info().rss - memory < 16 << 20
    assert scene.server.gateway.exchanges == set()


CLIENTS = """
import socket, sys, time
port, number = int(sys.argv[1]), int(sys.argv[2])
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, number + 100), hard))
held = []
for _ in range(number):
    one = socket.socket()
    one.connect(("127.0.0.1", port))
    one.sendall(b"GET /health HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
    held.append(one)
for one in held:
    assert one.recv(65536).startswith(b"HTTP/1.1 200"), "refused"
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.timeout(180)
async def test_ten_thousand_idle_connections_cost_little_memory_and_no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    number = 10_000
    before_limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = before_limits[1]
    if hard != resource.RLIM_INFINITY:
        if hard < number + 1000:
            pytest.skip(f"a process may have only {hard} descriptors here")
        # The gateway keeps a second descriptor for each, to serve it by (`test_odd_requests` tests that); these ask for
        # nothing that a replica has to answer.
        monkeypatch.setattr(server, "_affordable", lambda connections: connections)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    async with running_gateway(idle_timeout_s=60.0) as scene:
        await scene.route(await scene.replica())
        async with httpx.AsyncClient(base_url=scene.url, timeout=20, trust_env=False) as http:
            assert (await http.post(CHAT, json=chat())).status_code == 200
            descriptors, memory = THIS.num_fds(), THIS.memory_info().rss
            clients = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                CLIENTS,
                str(scene.server.port),
                str(number),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            assert clients.stdin is not None and clients.stdout is not None
            assert await asyncio.wait_for(clients.stdout.readline(), 120) == b"held\n"
            each = (THIS.memory_info().rss - memory) / number
            print(f"{number} idle connections: {each / 1024:.1f} KiB each")
            assert THIS.num_fds() >= descriptors + number
            assert each < 24 << 10
            begun_s = time.monotonic()
            assert (await http.post(CHAT, json=chat())).status_code == 200
            assert time.monotonic() - begun_s < 15.0
            clients.stdin.close()
            await clients.wait()
            await until(lambda: THIS.num_fds() <= descriptors + 5, 20)
    resource.setrlimit(resource.RLIMIT_NOFILE, before_limits)


# ---- fail static


@pytest.mark.proves(
    "an arbiter that is away changes nothing of what is obeyed",
    "the port opens in time though no orders come",
)
async def test_a_gateway_that_starts_while_the_arbiter_is_away_says_503_and_none_of_its_keys_is_guessed() -> None:
    from ebbtide_serve.gateway.server import GatewayServer
    from tests.builders.gateway import bearer, key
    from tests.serve_apps.gateway.fakes import FakeArbiter, settings

    arbiter = FakeArbiter(away=True, keys=(key("full"),))
    server = GatewayServer(settings(), arbiter)
    await server.start()
    async with httpx.AsyncClient(base_url=server.gateway.url, trust_env=False) as http:
        for response in (
            await http.get("/v1/models", headers=bearer("full")),
            await http.post(CHAT, json=chat(), headers=bearer("full")),
            await http.get("/metrics", headers=bearer("full")),
        ):
            assert response.status_code == 503 and response.headers["retry-after"] == "1"
            assert response.json()["error"]["code"] == "no_keys_yet"
        assert (await http.get("/health")).status_code == 200
        arbiter.away = False
        for _ in range(30):
            if (await http.get("/v1/models", headers=bearer("full"))).status_code == 200:
                break
            await asyncio.sleep(0.05)
        arbiter.away = True
        await asyncio.sleep(0.7)
        assert (await http.get("/v1/models", headers=bearer("full"))).status_code == 200  # the last orders stand
        assert (await http.get("/v1/models", headers=bearer("other"))).status_code == 401
    await server.stop(0.0)


@pytest.mark.proves("new orders are obeyed when they come, so a revoked key is soon refused")
async def test_a_revoked_key_is_refused_by_every_gateway_within_a_second() -> None:
    from dataclasses import replace

    from ebbtide_serve.gateway.server import GatewayServer
    from tests.builders.gateway import bearer, key
    from tests.serve_apps.gateway.fakes import FakeArbiter, settings

    arbiter = FakeArbiter(keys=(key("team"),), gateways=2)
    first = GatewayServer(settings(per_node=True), arbiter)
    await first.start()
    second = GatewayServer(settings(per_node=True, port=first.port), arbiter)  # the same port, as on one node each
    await second.start()
    assert second.port == first.port

    async def ask() -> int:
        """Over a new connection, which the kernel gives to one or the other."""
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", first.port)
            head = f"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: {bearer('team')['authorization']}\r\n\r\n"
            writer.write(head.encode())
            status = int((await reader.readuntil(b"\r\n")).split()[1])
            writer.close()
            return status

    assert {await ask() for _ in range(20)} == {200}
    arbiter.set_keys(replace(key("team"), revoked=True))
    revoked_s = time.monotonic()
    refused, let_in_s = 0, 0.0
    while refused < 20:
        begun_s = time.monotonic()
        if await ask() == 401:
            refused += 1
        else:
            refused, let_in_s = 0, begun_s - revoked_s
    assert let_in_s < 1.0, f"the last one was let in {let_in_s:.1f} s after it was revoked"

    def obeyed() -> list[int]:
        return sorted({report.gateway: report.keys_seen for report in arbiter.reports[-10:]}.values())

    await until(lambda: obeyed() == [arbiter.keys_version] * 2)
    await first.stop(0.0)
    async with httpx.AsyncClient(base_url=second.gateway.url, trust_env=False) as http:
        assert (await http.get("/health")).status_code == 200  # one gateway goes, the other knows all it needs
    await second.stop(0.0)
