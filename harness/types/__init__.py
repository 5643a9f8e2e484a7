"""What the stages hand to one another: episodes, requests for samples, seeds. It needs neither torch nor transformers."""
