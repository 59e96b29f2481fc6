"""What drives runs: one, a study of several, a search of settings."""
