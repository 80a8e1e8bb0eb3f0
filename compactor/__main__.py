"""`python -m compactor`."""

from __future__ import annotations

from compactor.cli import main

main()
