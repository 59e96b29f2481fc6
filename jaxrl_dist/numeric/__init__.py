"""Pure functions of numbers: returns, values, distributions, moments, permutations."""
