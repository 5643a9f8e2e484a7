"""Environments over OpenEnv's protocol: `server` serves any text environment, `client` plays any text server."""
