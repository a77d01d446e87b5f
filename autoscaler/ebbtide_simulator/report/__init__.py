"""Figures as tables, JSON and a page."""
