"""The code that runs in AppWorld's own virtualenv. It uses only the standard library and appworld, nothing of eh_gym.

The worker protocol loads this folder as the package ``eh_backend``. It starts with ``zygote.py``.
"""
