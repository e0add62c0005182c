"""Sessions and the loops in them: training, evaluation, prediction."""
