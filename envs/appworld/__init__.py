"""AppWorld with its real engine and its official evaluation. An episode's code is confined, apart from the apps.

`backend/` and `mini/` run in AppWorld's own virtualenv, everything else in the user's Python.
"""
