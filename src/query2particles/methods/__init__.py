"""Methods, one file a paper: what a set of entities looks like inside each, and what the five operators do to it."""

__all__: list[str] = []
