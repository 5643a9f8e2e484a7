"""The chat format: messages, tools and thoughts as the token ids of a tokenizer's template, and back."""
