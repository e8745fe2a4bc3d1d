"""``python -m phmctl``, and ``torchrun … -m phmctl``."""

from phmctl.cli.main import run

if __name__ == "__main__":
    run()
