"""The pages of `harness.report`: one with the figures and tables of runs, and one to read their episodes."""
