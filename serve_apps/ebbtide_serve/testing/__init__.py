"""Fakes of the serving room that ship with it: they import neither Ray nor vLLM."""
