"""The generators: one module per kind of task, three variants each. README.md says how to add one."""
