"""BFCL multi-turn function calling as a text environment, with the real simulators, data and verdict of bfcl-eval.

`backend/` runs in bfcl-eval's own virtualenv, everything else in the user's Python.
"""
