"""BFCL multi-turn function calling: the real simulators, data and verdict of bfcl-eval, as a text environment.

`env` and `splits` run in the user's Python. `backend` and its siblings `data`, `calls`, `execution` and `episode` run in
bfcl-eval's own virtualenv, with the standard library and bfcl-eval alone.
"""
