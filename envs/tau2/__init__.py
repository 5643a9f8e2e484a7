"""tau2-bench's telecom domain. `backend/` runs in tau2's own virtualenv."""
