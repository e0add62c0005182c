"""Software SparseCores, and what runs on them."""
