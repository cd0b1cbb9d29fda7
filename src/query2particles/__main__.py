"""`python -m query2particles` is `q2p`."""

from query2particles.cli import main

main()
