"""Float64 references of the TPU embedding engine, in plain loops."""
