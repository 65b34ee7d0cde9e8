"""`python -m forward`."""

from forward.cli import main

main()
