"""The warm start: a model learns to write what the environment's expert does."""
