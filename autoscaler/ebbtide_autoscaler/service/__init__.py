"""Answers to ranks, replicas, gateways and people; nothing is decided here."""
