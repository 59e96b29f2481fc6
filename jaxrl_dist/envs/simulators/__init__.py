"""The trainer's side of simulators: programs that own their loop and ask for actions by `jaxrl_dist.simulator`."""
