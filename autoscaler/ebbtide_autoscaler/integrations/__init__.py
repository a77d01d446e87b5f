"""The policy inside other systems."""
