"""Recorded traces, what a seed draws of them, and the requests of an endpoint."""
