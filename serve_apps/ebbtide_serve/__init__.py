"""Serving: the gateway, replicas around an engine, and the actuator by which the arbiter opens and closes seats.

Only ``vllm_engine``, ``vllm_worker`` and ``vllm_plugin`` know vLLM; only ``serve_internals`` knows Serve's insides.
"""
