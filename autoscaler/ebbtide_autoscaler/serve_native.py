"""The old name of `ebbtide_autoscaler.integrations.ray_serve_policy`, which Serve files of users may have."""

import warnings

from ebbtide_autoscaler.integrations.ray_serve_policy import DeploymentPolicy, ServePolicy

__all__ = ["DeploymentPolicy", "ServePolicy"]

warnings.warn(
    "ebbtide_autoscaler.serve_native is now ebbtide_autoscaler.integrations.ray_serve_policy: change policy_function",
    FutureWarning,  # a DeprecationWarning is hidden where Serve imports it
    stacklevel=2,
)
