"""Presets: a system on a task where it does well, one file of flags each; plain data."""
