"""What happened in a real pool, folded from its ledger."""
