"""The horizon controller without a model: against lengths that stay (`__main__`), against an agent that learns (`learner`)."""
