"""Builds a small AppWorld world of our own: invented people, content and tasks. See README.md.

It runs in AppWorld's virtualenv and uses only the standard library and appworld. appworld is imported inside functions,
so that these modules can be imported anywhere.
"""
