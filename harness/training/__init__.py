"""The policy update: the loss, the optimizer, and what the update reports."""
