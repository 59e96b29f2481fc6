"""The suites of environments, one file each, found by their record `SUITE`; `envs.make` makes an environment of one."""
