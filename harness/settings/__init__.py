"""The settings of the commands: a section for each part of the program, recipes, and the flags that are made from
them.
"""
