"""The table of mistakes: each is told once, in these words, at this line and column."""

from pathlib import Path

import pytest

from ebbtide.config.errors import ConfigErrors
from ebbtide.config.loading.pool_file_loader import load_text

FILE = Path("/some/where/pool.yaml")

GOLDEN: list[tuple[str, str, str, list[str]]] = [
    # what, this text of the valid file, replaced by this, gives exactly these problems
    ("typo", "slots: 3", "slot: 3", ["3:3: pool.slot: unknown key 'slot' (did you mean 'slots'?)"]),
    (
        "typo of a required key",
        "model: models/tiny",
        "Modle: models/tiny",
        ["7:5: endpoints[0].Modle: unknown key 'Modle' (did you mean 'model'?)"],
    ),
    ("one level off", "pool:\n", "slots: 4\npool:\n", ["1:1: slots: unknown key 'slots' (it belongs in pool)"]),
    (
        "nothing like it",
        "{min: 0, max: 2}",
        "{min: 0, max: 2, xyz: 3}",
        ["8:32: endpoints[0].replicas.xyz: unknown key 'xyz' (known here: min, max)"],
    ),
    (
        "missing",
        "    global_batch: 12\n",
        "",
        ["12:5: jobs[0].global_batch: 'global_batch' is required: Samples per step"],
    ),
    ("no slots", "slots: 3", "slots: 0", ['3:10: pool.slots: expected a whole number from 1, or "all"']),
    ("true is no count", "slots: 3", "slots: true", ['3:10: pool.slots: expected a whole number from 1, or "all"']),
    (
        "quoted number",
        "micro_batch: 4",
        'micro_batch: "4"',
        ["17:18: jobs[0].micro_batch: expected a whole number, got text (leave out the quotes)"],
    ),
    ("name is a number", "name: demo", "name: 8", ["2:9: pool.name: expected text, got a number (put it in quotes)"]),
    (
        "negative",
        "micro_batch: 4",
        "micro_batch: -4",
        ["17:18: jobs[0].micro_batch: must be greater than or equal to 1"],
    ),
    (
        "a stranger in a key",
        "name: users",
        "name: users\n    x: 1",
        [
            "20:5: keys[0].x: unknown key 'x' (known here: name, secret, scopes, "
            "endpoints, requests_per_minute, tokens_per_minute, concurrent_streams, revoked)"
        ],
    ),
    (
        "not finite",
        "jobs:\n",
        "policy: {tick_s: .nan}\njobs:\n",
        ["11:18: policy.tick_s: expected a finite number, got nan"],
    ),
    (
        "min over max",
        "{min: 0, max: 2}",
        "{min: 3, max: 2}",
        ["8:29: endpoints[0].replicas.max: max is 2, less than min, which is 3"],
    ),
    (
        "more warm than ever run",
        "{min: 0, max: 2}",
        "{min: 0, max: 2}\n    warm: {replicas: 3}",
        ["9:11: endpoints[0].warm: warm.replicas is 3, more than replicas.max, which is 2"],
    ),
    (
        "min over a default max",
        "{min: 0, max: 2}",
        "{min: 3}",
        ["8:5: endpoints[0].replicas.max: max is 1, less than min, which is 3"],
    ),
    (
        "batch too small",
        "global_batch: 12",
        "global_batch: 2",
        [
            "16:19: jobs[0].global_batch: global_batch is 2, less than workers.max, which is 3: "
            "some workers would have no sample"
        ],
    ),
    (
        "micro batch too large",
        "micro_batch: 4",
        "micro_batch: 13",
        ["17:18: jobs[0].micro_batch: micro_batch is 13, more than global_batch, which is 12"],
    ),
    (
        "entrypoint",
        "train:main",
        "train.main",
        ['13:17: jobs[0].entrypoint: expected "module:function", such as "my_package.train:main"'],
    ),
    (
        "class",
        "name: lm",
        "name: lm\n    class: preemptable",
        [
            "13:12: jobs[0].class: expected 'non-preemptible', 'semi-preemptible' or 'preemptible' "
            "(did you mean 'preemptible'?)"
        ],
    ),
    (
        "size",
        "slots: 3",
        "slots: 3\n  host_memory_per_node: 8 gigs",
        ['4:25: pool.host_memory_per_node: expected a number of bytes or a size such as "8 GiB" or "64 MiB"'],
    ),
    (
        "less room than any size",
        "slots: 3",
        "slots: 3\n  storage: {models_max: lots, checkpoints_max_per_job: 0}",
        [
            '4:25: pool.storage.models_max: expected a number of bytes or a size such as "8 GiB" or "64 MiB"',
            "4:56: pool.storage.checkpoints_max_per_job: must be greater than 0",
        ],
    ),
    (
        "bytes per second in gigabytes",
        "slots: 3",
        "slots: 3\n  storage:\n    bytes_per_s_per_node: 2",
        [
            "5:27: pool.storage.bytes_per_s_per_node: 2 bytes per second are less than one chunk, which has 16777216: "
            "no replica would start in time"
        ],
    ),
    (
        "no checkpoint to keep",
        "micro_batch: 4",
        "micro_batch: 4\n    keep_checkpoints: 0",
        ["18:23: jobs[0].keep_checkpoints: must be greater than or equal to 1"],
    ),
    (
        "a bound of the store where the pool's are",
        "slots: 3",
        "slots: 3\n  keep_free: 1 TB",
        ["4:3: pool.keep_free: unknown key 'keep_free' (it belongs in pool.storage)"],
    ),
    (
        "sized and joined",
        "slots: 3",
        "slots: 3\n  ray_address: auto",
        ["3:10: pool.slots: only a cluster that `up` starts can be sized here, and ray_address joins another one"],
    ),
    (
        "inline secret",
        "{file: users.key}",
        "sk-1234",
        ["20:13: keys[0].secret: a secret is never written inline: write {file: PATH}, {env: NAME} or {sha256: HEX}"],
    ),
    (
        "two references",
        "{file: users.key}",
        "{file: users.key, env: KEY}",
        ["20:13: keys[0].secret: expected exactly one of file, env and sha256, and file and env are given"],
    ),
    (
        "no reference",
        "{file: users.key}",
        "{}",
        ["20:13: keys[0].secret: expected exactly one of file, env and sha256, and none is given"],
    ),
    (
        "secret as its own hash",
        "{file: users.key}",
        "{sha256: sk-1234}",
        ["20:22: keys[0].secret.sha256: expected 64 small hex digits; a secret itself is never written inline"],
    ),
    (
        "scope",
        "name: users",
        "name: users\n    scopes: [inferenze]",
        ["20:14: keys[0].scopes[0]: expected 'inference' or 'admin' (did you mean 'inference'?)"],
    ),
    (
        "unknown endpoint",
        "[tiny]",
        "[tyni, all]",
        [
            "21:17: keys[0].endpoints[0]: there is no endpoint 'tyni' (did you mean 'tiny'?)",
            "21:23: keys[0].endpoints[1]: there is no endpoint 'all'",
        ],
    ),
    ("endpoints", "[tiny]", "tiny", ['21:16: keys[0].endpoints: expected a list of endpoint names, or "all"']),
    (
        "one name twice",
        "name: lm",
        "name: tiny",
        ["12:11: jobs[0].name: the name 'tiny' is already taken by endpoints[0]"],
    ),
    (
        "reserve",
        "slots: 3",
        "slots: 3\n  reserve: 3",
        ["4:12: pool.reserve: reserve is 3, and the pool has 3 slots: none is left"],
    ),
    (
        "too many workers",
        "slots: 3",
        "slots: 3\n  reserve: 2",
        [],
    ),
    (
        "workers that never fit",
        "{min: 1, max: 3}",
        "{min: 4, max: 4}",
        [
            "15:20: jobs[0].workers.min: min is 4, and jobs can have at most 3 slots (3 less the reserve of 0 and 0 of "
            "replicas that always run): it would wait for ever"
        ],
    ),
    (
        "a job beside replicas that are always there",
        "{min: 0, max: 2}",
        "{min: 3, max: 3}",
        ["15:20: jobs[0].workers.min: min is 1, and jobs can have at most 0 slots (3 less the reserve of 0 and 3 of "],
    ),
    (
        "more replicas at nine than there is room for",
        "{min: 0, max: 2}",
        "{min: 0, max: 4}\n    scheduled: [{at: '09:00', replicas: 4}]",
        ["9:41: endpoints[0].scheduled[0].replicas: 4 replicas at 09:00 need 4 slots, and the pool has 3"],
    ),
    (
        "a replica that never fits",
        "name: tiny",
        "name: tiny\n    gpus_per_replica: 4",
        ["7:23: endpoints[0].gpus_per_replica: gpus_per_replica is 4, and the pool has 3 slots"],
    ),
    (
        "replicas that never fit together",
        "{min: 0, max: 2}",
        "{min: 4, max: 4}",
        ["8:21: endpoints[0].replicas.min: replicas that always run need 4 slots up to here, and the pool has 3"],
    ),
    (
        "parks more than a node lends",
        "name: lm",
        "name: lm\n    host_memory_per_worker: 5 GiB",
        [
            "13:29: jobs[0].host_memory_per_worker: one parked worker needs 5368709120 bytes and a node lends "
            "4294967296: raise pool.host_memory_per_node, or set in_place: false"
        ],
    ),
    (
        "engine argument of ours",
        "max_model_len: 1024",
        "worker_cls: x",
        [
            "10:7: endpoints[0].engine.worker_cls: 'worker_cls' is not yours to set: "
            "ebbtide's own worker takes the slot lock"
        ],
    ),
    (
        "engine argument of ours in disguise",
        "max_model_len: 1024",
        "--tensor-parallel-size: 2",
        [
            "10:7: endpoints[0].engine.--tensor-parallel-size: '--tensor-parallel-size' is not yours to set: "
            "write it as `gpus_per_replica` of the endpoint"
        ],
    ),
    (
        "engine argument by its option name",
        "max_model_len: 1024",
        "max-model-len: 1024",
        ["10:7: endpoints[0].engine.max-model-len: 'max-model-len' is no Python name (write 'max_model_len')"],
    ),
    (
        "foreign code",
        "max_model_len: 1024",
        "trust_remote_code: true",
        [
            "10:26: endpoints[0].engine.trust_remote_code: code from a model directory is never run: "
            "only false is accepted"
        ],
    ),
    ("harmless engine argument", "max_model_len: 1024", "trust_remote_code: false", []),
    (
        "pool without directory",
        "  shared_dir: shared\n",
        "",
        ["1:1: pool: shared_dir is required because the file has endpoints"],
    ),
    (
        "twice",
        "slots: 3",
        "slots: 3\n  slots: 4",
        ["4:3: pool.slots: the key 'slots' is given twice (first in line 3)"],
    ),
    (
        "tag",
        "name: demo",
        "name: !!python/name:os.system x",
        ["2:9: pool.name: the tag '!!python/name:os.system' is not "],
    ),
    (
        "own tag",
        "name: demo",
        "name: !env X",
        ["2:9: pool.name: the tag '!env' is not accepted: only plain values are"],
    ),
    ("tagged mapping", "{min: 0, max: 2}", "!!python/object:x.Y {min: 0}", ["8:15: endpoints[0].replicas: the tag "]),
    ("bracket", "{min: 0, max: 2}", "{min: 0, max: 2", ["9:"]),
    ("unknown alias", "name: demo", "name: *demo", ["2:9: not valid YAML: found undefined alias 'demo'"]),
    (
        "key that is no text",
        "slots: 3",
        "3: slots",
        ["3:3: pool: a key must be text; put it in quotes if it is meant to be"],
    ),
    ("half a surrogate", "name: demo", r'name: "\ud800"', ["2:9: pool.name: half of a surrogate pair is no text"]),
    (
        "section is text",
        "{min: 1, max: 3}",
        "3",
        ["15:14: jobs[0].workers: expected a mapping (key: value), got a number"],
    ),
    (
        "section is nothing",
        "pool:\n",
        "pool:\nx:\n",
        ["1:1: pool: expected a mapping (key: value), got nothing", "2:1: x: unknown key 'x'"],
    ),
    ("empty path", "models/tiny", '""', ["7:12: endpoints[0].model: expected a path"]),
    ("null byte in a path", "models/tiny", r'"a\0b"', ["7:12: endpoints[0].model: expected a path"]),
    ("home of nobody", "models/tiny", "~no-such-user/x", ["7:12: endpoints[0].model: there is no such home directory"]),
]


@pytest.mark.parametrize(("old", "new", "expected"), [row[1:] for row in GOLDEN], ids=[row[0] for row in GOLDEN])
def test_a_mistake_is_told_at_its_place(valid_text: str, old: str, new: str, expected: list[str]) -> None:
    assert valid_text.count(old) == 1, "a row of the table must name one place"
    found: list[str] = []
    try:
        load_text(valid_text.replace(old, new), path=FILE)
    except ConfigErrors as error:
        found = [str(problem).removeprefix(f"{FILE}:") for problem in error.problems]
    # A row may give only the beginning of a text; the number of problems is exact.
    assert [line[: len(want)] for line, want in zip(found, expected, strict=False)] == expected, found
    assert len(found) == len(expected), found
