"""The policy: a language model, its chat format and its adapters, on one process or spread over several."""
