"""Training: from a graph to a run folder."""
