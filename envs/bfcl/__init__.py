"""BFCL multi-turn function calling as a text environment, with the real simulators, data and verdict of bfcl-eval.

`env` and `splits` run in the user's Python. `backend`, `data`, `calls`, `execution` and `episode` run in bfcl-eval's own
virtualenv and use only the standard library and bfcl-eval.
"""
