"""Declares which class of a TensorFlow 2 program trains; see `tf2_engine.declared`."""

from tf2_engine.declared import recorded, verifiable
