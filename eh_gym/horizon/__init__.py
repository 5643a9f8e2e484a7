"""How the horizon K is chosen."""
