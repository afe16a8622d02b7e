"""`edgespec` on the command line, and `python -m edgespec_cli`."""

import sys


def main() -> None:
    """Never returns. Ctrl-C is an exit code from the first import on."""
    try:
        from .main import cli

        cli.main(prog_name="edgespec")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
