"""Text to models: what a valid file means, what each kind of mistake is told, and that nothing else ever happens."""

from pathlib import Path

import pytest

from ebbtide.config.errors import ConfigErrors
from ebbtide.config.loading.pool_file_loader import load, load_file, load_text
from ebbtide.config.pool_file import PoolFile
from ebbtide.pool.spec import WorkloadClass

FILE = Path("/some/where/pool.yaml")


def errors_of(text: str) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        load_text(text, path=FILE)
    return [str(problem).removeprefix(f"{FILE}:") for problem in caught.value.problems]


def test_a_valid_file_becomes_models_with_paths_from_its_own_directory(valid_text: str) -> None:
    config = load_text(valid_text, path=FILE).config
    assert config.pool.shared_dir == Path("/some/where/shared")
    assert config.endpoints[0].model == Path("/some/where/models/tiny")
    assert config.jobs[0].working_dir == Path("/some/where/code")
    assert config.keys[0].secret.file == Path("/some/where/users.key")
    assert config.keys[0].endpoints == ("tiny",)
    assert not config.is_submission


def test_paths_may_be_absolute_or_start_at_home(valid_text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    text = valid_text.replace("models/tiny", "~/models/tiny").replace("shared_dir: shared", "shared_dir: /mnt/../mnt/x")
    config = load_text(text, path=FILE).config
    assert config.endpoints[0].model == Path("/home/ann/models/tiny")
    assert config.pool.shared_dir == Path("/mnt/x")


def test_what_was_loaded_can_be_written_as_json_and_loaded_again(valid_text: str) -> None:
    config = load_text(valid_text, path=FILE).config
    again = load_text(config.model_dump_json(by_alias=True, indent=1), path=Path("/else/x.yaml")).config
    assert again == config


def test_sections_say_to_the_pool_what_it_must_know(valid_text: str) -> None:
    config = load_text(valid_text.replace("name: lm", "name: lm\n    class: semi-preemptible"), path=FILE).config
    job, endpoint = config.jobs[0].spec(), config.endpoints[0].spec()
    assert (job.name, job.workers_min, job.workers_max) == ("lm", 1, 3)
    assert job.workload_class is WorkloadClass.SEMI_PREEMPTIBLE
    assert (job.host_bytes_per_worker, job.in_place, job.max_preemptions_per_h) == (2**30, True, 30)
    assert (endpoint.name, endpoint.replicas_min, endpoint.replicas_max) == ("tiny", 0, 2)
    assert endpoint.workload_class is WorkloadClass.NON_PREEMPTIBLE
    assert (endpoint.ttft_slo_s, endpoint.tpot_slo_s, endpoint.idle_after_s) == (2.0, 0.1, 30)


def test_a_file_with_a_pool_name_and_jobs_is_a_submission() -> None:
    text = (
        "pool: {name: demo}\njobs: [{name: a, entrypoint: 'm:f', workers: {max: 2}, global_batch: 2, micro_batch: 1}]"
    )
    assert load_text(text, path=FILE).config.is_submission


def test_aliases_merge_keys_and_yaml_1_2_scalars_mean_what_yaml_says(valid_text: str) -> None:
    text = valid_text.replace("  - name: tiny\n", "  - &first\n    name: tiny\n").replace(
        "jobs:", "  - <<: *first\n    name: big\n    owner: yes\njobs:"
    )
    config = load_text(text, path=FILE).config
    assert [endpoint.name for endpoint in config.endpoints] == ["tiny", "big"]
    assert config.endpoints[1].owner == "yes"  # not true: that was YAML 1.1
    assert config.endpoints[1].engine == {"max_model_len": 1024}


def test_every_mistake_is_told_at_once_even_those_between_sections(valid_text: str) -> None:
    text = (
        valid_text.replace("name: demo", "name: Demo")  # the pool is broken,
        .replace("max_model_len", "model")  # this endpoint is right by itself,
        .replace("micro_batch: 4", "micro_batch: none")  # this job is broken,
        .replace("name: lm", "name: tiny")  # and has a name that is taken,
        .replace("[tiny]", "[tinny]")  # and the key names nobody
    )
    assert [line.split(": ")[0] + ": " + line.split(": ")[1] for line in errors_of(text)] == [
        "2:9: pool.name",
        "10:7: endpoints[0].engine.model",
        "12:11: jobs[0].name",
        "17:18: jobs[0].micro_batch",
        "21:17: keys[0].endpoints[0]",
    ]


@pytest.mark.parametrize(
    ("host", "keys", "good"),
    [
        ("127.0.0.1", False, True),
        ("localhost", False, True),
        ('"::1"', False, True),
        ("0.0.0.0", False, False),
        ("example.org", False, False),
        ("0.0.0.0", True, True),
    ],
)
@pytest.mark.proves("a host name in the file is not taken for loopback", "an address that others reach needs keys")
def test_a_gateway_that_others_reach_needs_keys(valid_text: str, host: str, keys: bool, good: bool) -> None:
    text = (valid_text if keys else valid_text[: valid_text.index("keys:")]) + f"gateway: {{host: {host}}}\n"
    if good:
        load_text(text, path=FILE)
    else:
        (line,) = errors_of(text)
        assert "open to other machines" in line and line.split(": ")[1] == "gateway.host"


def test_a_root_model_built_in_python_is_checked_as_a_whole_too() -> None:
    with pytest.raises(ValueError, match="open to other machines"):
        PoolFile.model_validate_json('{"pool": {"name": "a"}, "gateway": {"host": "0.0.0.0"}}')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1:1: the file is empty"),
        ("# nothing\n", "1:1: the file is empty"),
        ("- a\n", "1:1: the file must be a mapping"),
        ("pool: {name: a}\n---\npool: {name: b}\n", "2:1: not valid YAML: but found another document"),
        ("a: &a [*a]\n", "the file has more than 32 levels, aliases included"),
        ("[" * 5000, "brackets are nested too deep"),
        ("x" * (2**20 + 1), "1:1: the file is larger than 1048576 bytes"),
        ("a: \x01\n", "1:4: not valid YAML: "),
        ("%YAML 9\n---\na: 1", "not valid YAML"),
        ("a: !!int x", "'x' is no int"),
    ],
)
def test_text_that_is_no_configuration_gives_one_clear_error(text: str, expected: str) -> None:
    assert any(expected in line for line in errors_of(text)), errors_of(text)


@pytest.mark.parametrize(
    "text", ["pool: [1,\n", "pool: {name: a}\njobs:\n  -\n", "pool:\n", "pool: {name: a}\njobs: |\n"]
)
def test_what_is_missing_at_the_end_is_told_at_the_last_line(text: str) -> None:
    last = len(text.splitlines())
    assert all(line.startswith(f"{last}:") for line in errors_of(text)), errors_of(text)


def test_a_small_file_cannot_grow_into_a_huge_one() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
    )
    assert any("more than 100000 values, aliases included" in line for line in errors_of(bomb))


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "pool.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigErrors, match=r"pool\.yaml:1:1: (cannot be read: No such file|is not UTF-8)"):
        load(file)


def test_a_file_that_never_ends_is_not_read_to_its_end() -> None:
    with pytest.raises(ConfigErrors, match="/dev/zero:1:1: the file is larger than 1048576 bytes"):
        load(Path("/dev/zero"))


def test_an_unreadable_list_of_endpoints_does_not_make_keys_wrong() -> None:
    keys = "keys: [{name: a, secret: {env: A}, endpoints: [tiny]}]"
    assert errors_of(f"pool: {{name: a, shared_dir: x}}\nendpoints: {{name: tiny}}\n{keys}\n") == [
        "2:12: endpoints: expected a list, got a mapping"
    ]


def test_no_error_repeats_a_secret(valid_text: str) -> None:
    for wrong in ("s3cr3t", "{value: s3cr3t}", "[s3cr3t]", "{sha256: s3cr3t}", "{env: s3-cr3t}", "{file: [s3cr3t]}"):
        text = "\n".join(errors_of(valid_text.replace("{file: users.key}", wrong)))
        assert "cr3t" not in text, text


def test_later_findings_get_positions_too(world: Path) -> None:
    loaded = load_file(world)
    assert loaded.document.place(("jobs", 0, "workers", "max")).line == 15
    assert loaded.document.place(("jobs", 0, "grace_s")).line == 12  # not in the file: at the job
