"""Starts that fail, in a real pool: what `up` says and its exit code, what clients get, where the cause is found.

One cluster, process engines, no model. Steps are numbered, since each finds the pool as the one before left it.
"""

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from ebbtide.client.cluster_join import join
from ebbtide.client.cluster_record import load_cluster
from tests.integration.conftest import Pool, a_free_port, ebbtide, ebbtide_here

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

CAUSE = "CUDA out of memory. Tried to allocate 2 GiB"
FILE = """
pool: {{name: {name}, slots: 2, num_cpus: 16, shared_dir: shared}}
gateway: {{port: {port}}}
endpoints:
  - name: chat
    model: m1
    engine_class: ebbtide_serve.testing.process_engine:ProcessEngine
    replicas: {{min: 1, max: 1}}
    engine: {{fail_start: "{fails}"}}
  - name: lazy
    model: m2
    engine_class: ebbtide_serve.testing.process_engine:ProcessEngine
    replicas: {{min: 0, max: 2}}
    engine: {{refuse_start: "{refuses}"}}
"""


class Case:
    """The pool, and its file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, a_free_port()

    def write(self, fails: str = "", refuses: str = "") -> str:
        path = self.folder / "pool.yaml"
        path.write_text(FILE.format(name=f"f{os.getpid()}", port=self.port, fails=fails, refuses=refuses))
        return str(path)

    @property
    def pool(self) -> Pool:
        return Pool(load_cluster(), self.folder)

    def ask(self, model: str = "chat") -> tuple[int, dict[str, str], str]:
        """A request of a client: status, headers, body."""
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "a"}]}).encode()
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        request = urllib.request.Request(url, body, {"content-type": "application/json"})
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
                return answer.status, dict(answer.headers), answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read().decode()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp("failing")
    before = dict(os.environ)
    os.environ["EBBTIDE_HOME"] = str(folder / "home")
    try:
        yield Case(folder)
    finally:
        ray.shutdown()
        ebbtide("down", "--now", check=False)
        os.environ.clear()
        os.environ.update(before)


def test_01_a_first_up_ends_with_1_and_the_cause_and_the_pool_stays_up(case: Case) -> None:
    done = ebbtide("up", case.write(CAUSE), check=False)
    assert done.returncode == 1, done.stdout
    cause, remedy = done.stdout[done.stdout.index("Error: ") :].splitlines()
    assert cause.startswith(f"Error: chat: it did not start: {CAUSE} (2 starts failed in a row; "), done.stdout
    assert cause.endswith("more: ebbtide logs chat/0)")
    assert remedy.startswith("The pool is up and stays up: ")
    join(load_cluster())
    assert case.pool.status()["arbiter"]["epoch"] == 1


def test_02_clients_get_503_with_an_id_by_which_the_cause_is_found(case: Case) -> None:
    case.pool.wait("it has failed three times", lambda: case.ask()[0] == 503)
    status, headers, body = case.ask()
    error = json.loads(body)["error"]
    assert (status, error["type"], error["code"]) == (503, "endpoint_unavailable", "start_failed")
    assert int(headers["retry-after"]) >= 1 and "CUDA" not in body
    found = re.search(r"the id (\S+)\.$", error["message"])
    assert found is not None
    told = ebbtide_here("why", found[1]).output
    assert f"the replica of chat/0 is told to exit: it did not start: {CAUSE}" in told, told
    assert re.search(rf"its start failed \d times in a row: it did not start: {re.escape(CAUSE)}; ", told)


def test_03_a_mended_file_ends_well_and_requests_are_answered(case: Case) -> None:
    assert ebbtide_here("up", case.write()).exit_code == 0
    assert case.ask()[0] == 200


def test_04_a_revision_that_fails_ends_with_1_and_the_old_replica_serves_on(case: Case) -> None:
    done = ebbtide_here("up", case.write("another " + CAUSE), check=False)
    assert done.exit_code == 1
    assert f"chat: it did not start: another {CAUSE} (2 starts failed in a row; the replicas that" in done.stderr
    assert "`ebbtide up --rollback` puts the one before back" in done.stderr
    assert case.ask()[0] == 200
    assert ebbtide_here("up", "--rollback", "--yes").exit_code == 0
    assert case.ask()[0] == 200


REFUSED = "vLLM: ModelConfig: max_model_len (999999) is greater than 2048"


def test_05_what_would_end_alike_on_every_slot_is_tried_once_and_the_first_request_gets_its_503(case: Case) -> None:
    """No minimum: `up` starts nothing of it."""
    assert ebbtide_here("up", case.write(refuses=REFUSED)).exit_code == 0
    status, headers, body = case.ask("lazy")
    error = json.loads(body)["error"]
    assert (status, error["type"], error["code"]) == (503, "endpoint_unavailable", "start_failed")
    assert 30 < int(headers["retry-after"]) <= 60
    (lazy,) = [one for one in case.pool.status()["endpoints"] if one["endpoint"] == "lazy"]
    assert (lazy["failures"], lazy["permanent"]) == (1, True)
    assert {seat["seat"]: seat["starts"] for seat in lazy["seats"] if seat["starts"]} == {"lazy/0": 1}, "no other seat"
    again = case.ask("lazy")
    assert again[0] == 503 and re.search(r"the id (\S+)\.$", json.loads(again[2])["error"]["message"])
    (lazy,) = [one for one in case.pool.status()["endpoints"] if one["endpoint"] == "lazy"]
    assert lazy["failures"] == 1 and REFUSED in lazy["last_error"]
    assert case.ask()[0] == 200, "the other endpoint serves on"


def test_06_a_new_revision_is_tried_at_once(case: Case) -> None:
    assert ebbtide_here("up", case.write()).exit_code == 0
    assert case.ask("lazy")[0] == 200


def test_07_up_gives_up_after_the_first_such_start_where_a_replica_always_runs(case: Case) -> None:
    path = Path(case.write(refuses=REFUSED))
    path.write_text(path.read_text().replace("{min: 0, max: 2}", "{min: 1, max: 2}"))
    done = ebbtide_here("up", str(path), check=False)
    assert done.exit_code == 1
    assert f"lazy: it did not start: {REFUSED} (it would end alike on every slot; " in done.stderr
