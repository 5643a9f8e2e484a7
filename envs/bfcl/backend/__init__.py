"""The code that runs in bfcl-eval's own virtualenv. It uses only the standard library and bfcl-eval, nothing of eh_gym.

The worker protocol loads this folder as the package ``eh_backend``. It starts with ``worker.py``.
"""
