"""Fakes that ship and that the running product never imports; knows ebbtide, no other root."""
