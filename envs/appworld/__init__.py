"""appworld: its id exists, the environment is not part of this release yet."""
