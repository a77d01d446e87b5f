"""The session's supervisor: its states and record, its reports, and what it does when the slot is asked for."""
