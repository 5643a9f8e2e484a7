"""The policy update: the loss, the optimizer, what the update reports, and the checkpoints of its state."""
