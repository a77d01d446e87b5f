"""What commands share towards a person: output, errors and exit codes, progress, interrupts, completed names."""
