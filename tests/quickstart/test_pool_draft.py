"""Every draft is a valid file that says what was asked for, and the README shows the one that `init` writes."""

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ebbtide.config.loading.pool_file_loader import load_text
from ebbtide_quickstart.pool_draft import EXAMPLE_ENTRYPOINT, EXAMPLE_MODEL, PoolDraft, pool_text
from ebbtide_quickstart.quick_demo import hasty

README = Path(__file__).parents[2] / "README.md"


def names() -> st.SearchStrategy[str]:
    return st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)


@given(
    st.none() | st.integers(1, 512),
    st.integers(1024, 65535),
    st.none() | st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20).map("/m/{}".format),
    st.none() | st.tuples(names(), names()).map(":".join),
    st.booleans(),
)
def test_every_draft_is_a_valid_file_that_says_what_was_asked_for(
    slots: int | None, port: int, model: str | None, entrypoint: str | None, on_gpus: bool
) -> None:
    draft = PoolDraft(slots=slots, port=port, model=model, entrypoint=entrypoint, on_gpus=on_gpus)
    config = load_text(pool_text(draft), path=Path("/here/pool.yaml")).config
    assert config.pool.slots == ("all" if slots is None else slots)
    assert config.gateway.port == port
    assert str(config.endpoints[0].model) == (f"/here/{EXAMPLE_MODEL}" if model is None else str(Path(model)))
    assert config.jobs[0].entrypoint == (entrypoint or EXAMPLE_ENTRYPOINT)
    assert ("enforce_eager" in config.endpoints[0].engine) is not on_gpus


def test_every_key_of_the_draft_has_a_comment() -> None:
    for line in pool_text(PoolDraft()).splitlines():
        is_plain = not line.strip() or line.strip().startswith("#") or re.fullmatch(r"\w+:", line)
        assert is_plain or line.split(":")[0].strip(" -") == "name" or "#" in line, line


def test_what_the_demo_adds_still_makes_a_valid_file() -> None:
    config = load_text(hasty(pool_text(PoolDraft(slots=1))), path=Path("/here/pool.yaml")).config
    endpoint, job = config.endpoints[0], config.jobs[0]
    assert (endpoint.idle_after_s, endpoint.engine["max_num_seqs"], job.min_runtime_s) == (3, 4, 2)
    assert config.policy.grow_after_s == 1 and job.args["steps"] == 1_000_000


def test_the_readme_shows_the_file_that_init_writes() -> None:
    shown = re.search(r"```yaml\n(.*?)```", README.read_text(), re.DOTALL)
    assert shown is not None
    assert (
        load_text(shown[1], path=Path("/here/pool.yaml")).config
        == load_text(pool_text(PoolDraft()), path=Path("/here/pool.yaml")).config
    )
