"""Serving: the gateway, replicas around an engine, and the actuator by which the arbiter opens and closes seats.

Only ``vllm`` and ``vllm_versions`` import vLLM (``vllm_plugin`` is known by it); only ``serve_internals`` knows Serve's
insides. What lies here beside the rooms is what entry points name, and the errors of all rooms.
"""
