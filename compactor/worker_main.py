"""Entry point of `compactor-worker`."""

from __future__ import annotations

from typing import NoReturn

from compactor.cli import role_main


def main() -> NoReturn:
    role_main("worker")
