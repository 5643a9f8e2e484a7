"""The elastic horizon in other trainers: one module for each. A module imports its trainer when it is imported."""
