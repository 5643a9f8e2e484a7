"""Gymnasium environments for LLM agents: AppWorld, BFCL and the built-in filing cabinet."""
