"""The settings of the commands: sections, recipes, and the flags that are made from them."""
