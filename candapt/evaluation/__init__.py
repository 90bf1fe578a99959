"""Label-free scores, the choice of a round, warnings, the estimated accuracy, and metrics with true labels."""
