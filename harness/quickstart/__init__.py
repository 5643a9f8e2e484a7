"""The parts of the quick start: a tiny model made for one environment, and its warm start from the environment's expert."""
