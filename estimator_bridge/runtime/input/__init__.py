"""What an `input_fn` returns, split and fed to the cores."""
