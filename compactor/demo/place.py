"""The demo's directory: metastore, warehouse, settings and logs, all in one place that is left for a look."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from compactor.errors import UsageError
from compactor.metastore.database import Database
from compactor.metastore.schema import init_db

_MARK = ".hive-compactor-demo"
_SETTINGS = """# The settings of the demo: Hive's defaults, but a look at the tables every second instead of every five minutes,
# and compactions from the second delta on, so that every table that Hive wrote has something to show.
database_url = "{url}"
warehouse = "file:{warehouse}"

[initiator]
interval_s = 1
delta_num_threshold = {deltas}

[worker]
sleep_s = 0.5

[cleaner]
interval_s = 0.5

[metrics]
port = 0
"""


@dataclass(frozen=True, kw_only=True)
class DemoPlace:
    """Paths of the demo below its directory."""

    root: Path

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.root}/metastore.db"

    @property
    def log(self) -> Path:
        return self.root / "compactor.log"

    @property
    def config(self) -> Path:
        return self.root / "compactor.toml"

    def write_settings(self, *, delta_num_threshold: int) -> None:
        """compactor.toml for the daemon and for whoever looks around afterwards."""
        text = _SETTINGS.format(url=self.database_url, warehouse=self.root / "warehouse", deltas=delta_num_threshold)
        self.config.write_text(text, encoding="utf-8")

    def files_below(self, location: str) -> tuple[int, int]:
        """(files, bytes) of data below a location, hidden files and checksums left out."""
        sizes = [
            p.stat().st_size
            for p in Path(location.removeprefix("file:")).rglob("*")
            if p.is_file() and not p.name.startswith(("_", "."))
        ]
        return len(sizes), sum(sizes)


def prepare(directory: Path) -> tuple[DemoPlace, Database]:
    """An empty demo directory with a fresh metastore; UsageError when something else is there."""
    root = directory.absolute()
    if root.exists() and any(root.iterdir()):
        if not (root / _MARK).exists():
            raise UsageError(f"{root} is not empty and no earlier demo", hint="choose another --directory")
        shutil.rmtree(root)
    root.mkdir(parents=True, exist_ok=True)
    (root / _MARK).write_text("Made by 'compactor demo'; the next demo replaces it.\n", encoding="utf-8")
    place = DemoPlace(root=root)
    db = Database.connect(place.database_url)
    init_db(db, warehouse=f"file:{root}/warehouse")
    return place, db
