"""What legacy programs name: specs, parameters and configs with stock's arguments."""
