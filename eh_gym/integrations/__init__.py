"""The elastic horizon in other people's trainers: one module for each. A module imports its trainer when it is imported."""
