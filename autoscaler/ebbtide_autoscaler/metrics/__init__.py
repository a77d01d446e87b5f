"""Counters, gauges and the port that is scraped."""
