"""`python -m edgespec_cli` is `edgespec`."""

from .main import main

main()
