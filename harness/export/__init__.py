"""Episodes of an evaluation as the files of BFCL and AppWorld."""
