"""Requests and answers, and the lines of a unix socket that carry them; knows no verb's work."""
