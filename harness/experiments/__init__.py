"""The paper's experiments: suites of runs, the jobs that carry them out, their analysis, reports and simulations."""
