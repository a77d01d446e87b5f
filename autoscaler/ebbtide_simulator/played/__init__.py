"""Runs that have ended, and where they are kept."""
