"""Replaces the calls with which a program creates and uses estimators."""
