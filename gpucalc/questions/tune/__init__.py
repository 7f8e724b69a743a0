"""Fine-tuning, preference optimisation and reinforcement learning: rows, policies, plans."""
