"""How checkpoints store tables: files, checksums, row orders, object graphs and variable names."""
