"""What one Ray Train worker is given and runs: its plan and environment, then a training or an interactive rank."""
