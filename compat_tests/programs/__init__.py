"""Small legacy-style programs that the tests run on stock and on the bridge."""
