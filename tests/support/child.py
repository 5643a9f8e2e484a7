import subprocess
import sys


def python(*words, **more):
    """What a process of this Python prints; fails if the process does."""
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=600, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
