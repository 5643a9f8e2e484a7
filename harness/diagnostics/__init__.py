"""The checks of a machine: short runs and probes, judged by what the project promises."""
