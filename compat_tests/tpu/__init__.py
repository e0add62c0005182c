"""Tests of the TPU driver and the software TPU."""
