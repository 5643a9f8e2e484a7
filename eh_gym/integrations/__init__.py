"""The elastic horizon in other trainers. Each module imports its trainer."""
