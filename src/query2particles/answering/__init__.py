"""Answering: from a run folder to ranked answers with probabilities and evidence."""
