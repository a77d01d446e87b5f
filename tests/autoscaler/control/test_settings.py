"""From the pool's file to the policy's knobs: none of those that the file names is forgotten."""

from dataclasses import fields

import pytest

from ebbtide.config.sections.policy_section import PolicySection
from ebbtide_autoscaler.control.settings import policy_config
from ebbtide_autoscaler.core.plan.fair_share import Team
from ebbtide_autoscaler.core.plan.inputs import PolicyConfig

KNOBS = sorted({one.name for one in fields(PolicyConfig)} & PolicySection.model_fields.keys())


@pytest.mark.parametrize("knob", KNOBS)
def test_a_knob_of_the_file_is_the_policys(knob: str) -> None:
    default = getattr(PolicySection(), knob)
    other = not default if isinstance(default, bool) else default / 2 or 0.5
    found = policy_config(PolicySection.model_validate({knob: other}), reserve=0)
    assert getattr(found, knob) == other != default


@pytest.mark.proves("jobs leave the reserve of the file free")
def test_what_the_section_does_not_have_is_given_beside_it() -> None:
    teams = (Team("vision", 2, 1.0, None),)
    found = policy_config(PolicySection(), reserve=3, teams=teams)
    assert (found.reserve, found.teams) == (3, teams)
    assert {one.name for one in fields(PolicyConfig)} == {*KNOBS, "reserve", "teams"}
