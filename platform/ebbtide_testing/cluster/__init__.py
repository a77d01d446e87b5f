"""Fakes that ship: a virtual clock, and a cluster, gangs, gateways and links that obey the same messages; no Ray."""
