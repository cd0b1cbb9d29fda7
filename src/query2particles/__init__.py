"""Answers first-order-logic questions over incomplete knowledge graphs."""

__version__ = "0.1.0"
