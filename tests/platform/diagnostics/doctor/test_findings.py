"""Findings and their order."""

import json

import pytest

from ebbtide.diagnostics.doctor.findings import Finding, Verdict, by_verdict


def test_a_finding_that_is_not_in_order_must_say_why_and_what_to_do() -> None:
    with pytest.raises(AssertionError, match=r"fs\.x must say why, and what to do"):
        Finding("fs.x", Verdict.LIMITED, "it is so", why="it costs")


def test_what_is_in_order_cannot_be_broken() -> None:
    with pytest.raises(AssertionError):
        Finding("fs.x", Verdict.OK, "it is so", broken=True)


def test_groups_come_worst_first_and_broken_before_all() -> None:
    ok, limited = Finding("a", Verdict.OK, "x"), Finding("b", Verdict.LIMITED, "x", "y", "z")
    missing = Finding("c", Verdict.MISSING, "x", "y", "z")
    broken = Finding("d", Verdict.MISSING, "x", "y", "z", broken=True)
    groups = by_verdict([ok, limited, missing, broken])
    assert list(groups.items()) == [
        (Verdict.MISSING, [broken, missing]),
        (Verdict.LIMITED, [limited]),
        (Verdict.OK, [ok]),
    ]


def test_json_has_every_part() -> None:
    finding = Finding("a.b", Verdict.LIMITED, "x", "y", "z", {"list": ["1"], "size": 2})
    assert json.loads(json.dumps(finding.as_json())) == {
        "id": "a.b",
        "verdict": "limited",
        "broken": False,
        "what": "x",
        "why": "y",
        "remedy": "z",
        "values": {"list": ["1"], "size": 2},
    }
