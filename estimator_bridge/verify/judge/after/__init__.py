"""The comparison of what follows a training: evaluations, predictions, exports."""
