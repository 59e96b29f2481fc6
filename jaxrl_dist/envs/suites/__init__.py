"""The suites of environments: one file each, with a record `SUITE` by which `envs` finds it."""
