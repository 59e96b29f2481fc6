"""Drives a run, a study of several, or a search of settings."""
