"""cabinet."""
