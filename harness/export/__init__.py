"""Episodes of an evaluation as the files of BFCL, AppWorld and tau2."""
