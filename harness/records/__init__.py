"""What a run leaves in its folder: metrics, episodes, the settings' file, and the clock and versions in them."""
