"""The report: pages with the figures, the tables and the episodes of runs and evaluations."""

from harness.report.report import figures

__all__ = ["figures"]
