"""What the stages pass to each other: episodes, requests for samples, and seeds. It needs neither torch nor transformers."""
