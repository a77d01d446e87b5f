"""Serving: the gateway, replicas around an engine, and the actuator by which the arbiter opens and closes seats.

Only ``vllm_engine``, ``vllm_worker`` and ``loading.vllm_formats`` know vLLM (``vllm_plugin`` is known by it); only
``serve_internals`` knows Serve's insides.
"""
