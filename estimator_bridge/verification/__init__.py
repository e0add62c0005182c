"""Two engines side by side: one program, one initial state, the same batches, every number."""
