"""`edgespec` on the command line, and `python -m edgespec_cli`."""

import sys


def main() -> None:
    """Run the program; Ctrl-C gives exit code 130, even while modules are imported."""
    try:
        from .main import cli

        cli.main(prog_name="edgespec")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
