"""How many replicas each endpoint should have. Pure."""
