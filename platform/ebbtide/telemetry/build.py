"""Which software this is."""

import platform
from importlib.metadata import PackageNotFoundError, version

from ebbtide.telemetry.metric_family import Family, Sample

BUILD_INFO = Family(
    "ebbtide_build_info", "gauge", "Always 1; versions of ebbtide, Ray and Python.", ("version", "ray", "python")
)

FAMILIES = (BUILD_INFO,)


def build_info() -> Sample:
    """The one sample of this process."""
    return Sample(BUILD_INFO, 1.0, (_version("ebbtide"), _version("ray"), platform.python_version()))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"
