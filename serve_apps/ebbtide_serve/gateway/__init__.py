"""The public HTTP face: OpenAI routes, API keys, limits, the holding of requests while a replica starts.

Its rooms: ``http`` (bytes of HTTP, in and out), ``admission`` (keys, limits, holding), ``telemetry`` (counting).

This folder may know the messages to the arbiter (``ebbtide.client.messages``), FastAPI, uvicorn and aiohttp. Only
``deployment`` knows Ray; nothing here knows vLLM. Entry points: ``app.build_app``, ``server.GatewayServer``,
``deployment.GatewayDeployment``.
"""
