"""GRPO training of LLM agents on many environments at once, under any horizon controller."""
