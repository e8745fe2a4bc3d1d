"""The ``phmctl`` command: registers the subcommands and turns errors into exit codes."""


def run() -> None:
    """Entry point."""
