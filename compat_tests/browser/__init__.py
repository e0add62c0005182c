"""The page of `verify` in a browser: `make page`."""
