"""The paper's experiments: suites of runs, the jobs that carry them out, the analysis of runs, and their reports."""
