"""The code that runs in AppWorld's own virtualenv. It imports only the standard library and appworld.

The worker protocol loads this folder as the package ``eh_backend`` and starts ``zygote.py``.
"""
