"""Environments: one file per suite, and what they share; each optional library is imported only in its own file."""
