"""AppWorld: the real engine and the official evaluation, a confined process per episode and another that judges.

`backend/` runs in AppWorld's own virtualenv, all else in the user's Python.
"""
