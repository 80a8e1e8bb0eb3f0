"""`compactor-housekeeper`, `python -m cleaner.housekeeper_main`: the housekeeper alone in a process."""

from __future__ import annotations

from typing import NoReturn

from compactor.cli import role_main


def main() -> NoReturn:
    """Run the role until it is told to stop, then exit."""
    role_main("housekeeper")


if __name__ == "__main__":
    main()
