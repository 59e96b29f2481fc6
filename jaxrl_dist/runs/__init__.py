"""Writes and reads a run folder."""
