"""The policy: a language model, its chat format and its adapters, in one process or sharded over several."""
