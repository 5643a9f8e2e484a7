"""Builds a small AppWorld world of our own: invented people, invented content, and tasks with AppWorld's own
evaluation.

``build.py`` runs it in AppWorld's virtualenv, where nothing of this project is installed. So it uses only the standard
library and appworld. appworld is imported inside functions, so that these modules can be imported anywhere. See
README.md.
"""
