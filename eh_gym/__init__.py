"""Gymnasium environments for LLM agents, and wrappers that find how many steps an agent really needs."""
