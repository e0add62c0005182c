"""Declares the class of a TensorFlow 2 program that trains; see `tf2_engine.declared`."""

from tf2_engine.declared import recorded, verifiable
