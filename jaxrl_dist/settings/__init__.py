"""Published settings of the systems, by task family, each with its source; plain data."""
