"""What runs in AppWorld's own virtualenv: standard library and appworld, nothing of eh_gym.

The worker protocol loads this folder as the package ``eh_backend``; ``zygote.py`` is where it starts.
"""
