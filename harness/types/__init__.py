"""The objects that the stages exchange: episodes, requests for samples, and seeds. It loads neither torch nor transformers."""
