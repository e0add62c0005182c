"""Checkpoints, warm starts and exports of a job."""
