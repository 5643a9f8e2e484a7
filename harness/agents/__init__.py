"""Agents that are programs of their own: an endpoint that speaks OpenAI's protocol, and the agent as an environment."""
