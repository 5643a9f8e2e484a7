"""The parts of the quick start: a tiny model made for one environment, and cloning the environment's expert."""
