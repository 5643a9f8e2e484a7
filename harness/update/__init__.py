"""The policy update: the loss, the optimizer, the reference, and what the update reports."""
