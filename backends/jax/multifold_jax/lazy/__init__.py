"""JAX for plain programs: cells, operators and indexing are recorded; functions of JAX belong in cells."""
