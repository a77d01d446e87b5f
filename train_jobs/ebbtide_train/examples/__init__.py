"""Whole jobs that run as they are; copy one to start your own. They know the session and nothing below it."""
