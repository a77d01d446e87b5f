"""Where Ray's job service is, asked of the cluster itself; the only module here that looks into Ray's key-value store.

Ray 2.60 writes the dashboard's host:port there (``ray.dashboard.utils.ray_address_to_api_server_url`` reads the same
entry, but tries for 20 s where there is none).
"""

import logging

import ray
from ray._private.ray_constants import DASHBOARD_ADDRESS, KV_NAMESPACE_DASHBOARD
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_initialized
from ray.job_submission import JobSubmissionClient

from ebbtide.system.direct_addresses import reach_directly


class NoDashboard(RuntimeError):
    """The cluster this process has joined runs without a dashboard, and so without a job service."""


def dashboard_url() -> str:
    """Of the cluster that this process has joined.

    Raises:
        NoDashboard: it has none.
    """
    found = None
    if ray.is_initialized() and _internal_kv_initialized():
        found = _internal_kv_get(DASHBOARD_ADDRESS, namespace=KV_NAMESPACE_DASHBOARD)
    host, _, port = (found or b"").decode().rpartition(":")
    if not host or not port.isdigit() or port == "0":
        raise NoDashboard("no dashboard: start Ray with `ray start --head --include-dashboard=true`")
    return f"http://{host}:{port}"


def job_service(url: str = "") -> JobSubmissionClient:
    """Ray's job service of this cluster, or at ``url``; no proxy of the environment is asked for it.

    Raises:
        NoDashboard: there is none.
        ConnectionError, RuntimeError: it does not answer.
    """
    url = url or dashboard_url()
    reach_directly(url)
    logging.getLogger("ray.dashboard.modules.dashboard_sdk").setLevel(logging.WARNING)  # it logs each upload
    return JobSubmissionClient(url)
