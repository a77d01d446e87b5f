"""HTTP and OpenAI's protocol: connections of clients and to replicas, TLS, bodies, server-sent events, schemas.

Knows neither keys nor the arbiter.
"""
