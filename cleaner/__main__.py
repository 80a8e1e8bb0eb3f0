"""`compactor-cleaner`, `python -m cleaner`: the cleaner alone in a process."""

from __future__ import annotations

from typing import NoReturn

from compactor.cli import role_main


def main() -> NoReturn:
    """Run the role until it is told to stop, then exit."""
    role_main("cleaner")


if __name__ == "__main__":
    main()
