"""Agents that are programs: an endpoint that speaks OpenAI's protocol, and the agent as an environment."""
