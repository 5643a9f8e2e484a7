"""The elastic horizon in other trainers: one module for each. A module imports its trainer when it is imported."""

__all__ = ["TESTED"]

TESTED = {"trl": "1.16", "verifiers": "0.4", "skyrl": "0.3", "skyrl-gym": "0.4", "verl": "0.9", "openenv": "0.10"}
"""The trainers' packages, and the versions that the tests run with (`tox run -e tests`, `tox run -m integrations`)."""
