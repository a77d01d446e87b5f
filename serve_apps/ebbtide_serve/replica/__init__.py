"""A replica: the deployment that Serve constructs, its HTTP, its reports to the pool, parking, its preparation.

Knows the engine port, never vLLM or the gateway.
"""
