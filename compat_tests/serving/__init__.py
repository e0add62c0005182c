"""Tests of lookups for serving."""
