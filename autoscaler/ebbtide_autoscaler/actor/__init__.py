"""The Ray actor that decides and keeps the ledger."""
