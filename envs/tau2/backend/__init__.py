"""Runs in tau2's own virtualenv, as the package ``eh_backend``."""
