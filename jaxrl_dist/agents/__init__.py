"""Agents: one file each, a `Config` and a `make(config, spec, network) -> Agent` of pure functions."""
