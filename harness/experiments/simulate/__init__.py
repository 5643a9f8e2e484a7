"""The horizon controller without a model: the paper's (`__main__`), and what goes beyond it (`beyond`)."""
