"""`python -m packimport`."""

from packimport.cli import main

main()
