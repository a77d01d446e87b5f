"""What the replica may ask of a rank: plain data, and names that meet nobody's."""

import json

from ebbtide_serve.vllm.worker_calls import LoadCalls


def test_every_call_has_a_name_of_ours_and_an_answer_that_can_be_sent() -> None:
    calls = LoadCalls()
    assert {name for name in vars(LoadCalls) if not name.startswith("_")} == {
        "ebbtide_start_record",
        "ebbtide_flat_state",
        "ebbtide_flat_stage",
        "ebbtide_flat_drop",
    }
    json.dumps([calls.ebbtide_start_record(), calls.ebbtide_flat_state()])
    calls.ebbtide_flat_stage("nothing is held, so nothing happens")
    calls.ebbtide_flat_drop("not wanted")
    assert calls.ebbtide_flat_state()["phase"] == "none"
