"""Host memory of the node for parked state: lent within a budget, and cleared up after borrowers that died."""
