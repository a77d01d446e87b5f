"""The ledger in the arbiter's terms: records, recovery, opening and keeping it open; what halts the arbiter."""
