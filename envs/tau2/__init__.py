"""tau2-bench's telecom domain as a text environment. `backend/` runs in tau2's own virtualenv."""
