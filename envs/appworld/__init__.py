"""AppWorld with its real engine and its official evaluation. Each episode has a confined process; another process judges it.

`backend/` and `mini/` run in AppWorld's own virtualenv, everything else in the user's Python.
"""
