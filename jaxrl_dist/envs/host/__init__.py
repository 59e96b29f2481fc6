"""Environments on the CPU: pools, worker processes, and the bookkeeping of episodes."""
