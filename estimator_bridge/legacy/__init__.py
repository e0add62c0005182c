"""The classes that legacy programs use: specs, parameters and configs with stock's arguments."""
