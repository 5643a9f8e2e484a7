"""Files for the tools of others: BFCL's result files, AppWorld's experiment outputs, conversations, and token ids."""
