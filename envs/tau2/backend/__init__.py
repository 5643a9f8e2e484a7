"""The code that runs in tau2's own virtualenv. `eh_gym.worker` loads this folder as ``eh_backend``, from worker.py."""
