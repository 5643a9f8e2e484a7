"""The objects that the stages exchange, without torch."""
