"""Environments over OpenEnv's protocol, both ways: `server` serves any text environment, `client` plays any text
server.
"""
