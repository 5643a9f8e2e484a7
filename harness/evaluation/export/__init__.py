"""Files for other tools: BFCL's result files, AppWorld's experiment outputs, conversations, and token ids."""
