"""Which request may go on, and when: keys, rate limits, held requests, the fair queue, the routing table.

Knows messages, asyncio and refusals; no connection.
"""
