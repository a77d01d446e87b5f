"""Drivers that harm what they freeze, by version: with one of these nothing is frozen. Pure.

Source: NVIDIA/cuda-checkpoint issues 53 and 58.
"""

from collections.abc import Mapping

DEFECTS: Mapping[str, str] = {
    "595.71.05": "killing a process that was frozen once hangs the whole machine, so no process is frozen",
    "610.57.04": "it kills processes with several threads when it freezes them",
}
REMEDY = "install a later driver"


def defect(version: str) -> str:
    """What is wrong with a driver; empty if nothing is known."""
    what = DEFECTS.get(version)
    return f"driver {version} has a defect: {what}" if what else ""
