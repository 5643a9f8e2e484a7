"""The paper's experiments: suites of runs, the jobs that carry them out, and the numbers of their runs."""
