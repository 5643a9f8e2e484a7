"""The horizon controller without a model: the paper's (`harness.simulate`), and others (`harness.simulate_beyond`)."""
