"""Builder of a small AppWorld world of our own: invented people, invented content, tasks with AppWorld's own evaluation.

Runs in AppWorld's virtualenv (``build.py``), where nothing of this project is installed: the standard library and appworld
only, the latter imported inside functions so that these files can be read anywhere. See README.md.
"""
