"""`python -m shoal` is the same as the command `shoal`."""

from shoal.cli.main import entry_point

if __name__ == "__main__":
    entry_point()
