"""One run's folder: settings, checkpoints, metrics, episodes, and what the terminal shows."""
