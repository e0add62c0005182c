"""Measures which seeded faults `verify` finds and explains, and which honest pairs it rejects."""
