"""docs/settings.md, made from the settings themselves: `python -m compactor.settings_page > docs/settings.md`."""

from __future__ import annotations

import sys
from itertools import groupby

from compactor.config import SettingDoc, describe_settings
from compactor.hive_keys_without_meaning import WITHOUT_MEANING

INTRODUCTION = """\
# Settings

<!-- Made by `python -m compactor.settings_page > docs/settings.md`; do not edit. -->

The same setting can come from several places. Each wins over the ones before it:

1. the default below, which is Hive's;
2. `hive-site.xml` (`--hive-site FILE`), under Hive's own key and in Hive's unit;
3. `compactor.toml` (`--config FILE`, else `$COMPACTOR_CONFIG`, else the one in the current directory);
4. the environment variable;
5. the command line.

Durations are seconds; as text they may carry a unit: `"250ms"`, `"90s"`, `"5m"`, `"12h"`, `"7d"`. In a variable, a list
is written with commas and a map as a JSON object. Where Hive has two spellings of a key, the first one listed wins.
A `hive.compactor.cleaner.retention.time.seconds` holds only with `hive.compactor.delayed.cleanup.enabled`.
Hive keys of the same families that have no meaning here are named in a warning at the start.
"""


_WITHOUT_MEANING = "Keys of Hive's transaction manual that change nothing:"


def settings_page() -> str:
    """The page as Markdown: a table for each section of compactor.toml."""
    parts = [INTRODUCTION]
    for section, docs in groupby(describe_settings(), key=lambda doc: doc.name.rpartition(".")[0]):
        parts.append(f"\n## {f'[{section}]' if section else 'General'}\n")
        parts.append("| Setting | Default | Variable | Hive's key | Meaning |\n| --- | --- | --- | --- | --- |")
        parts.extend(_row(doc) for doc in docs)
    parts.append(f"\n## Without a meaning here\n\n{_WITHOUT_MEANING}\n\n| Hive's key | Why |\n| --- | --- |")
    parts.extend(f"| `{key}` | {reason} |" for key, reason in WITHOUT_MEANING.items())
    return "\n".join(parts) + "\n"


def _row(doc: SettingDoc) -> str:
    keys = "<br>".join(f"`{key}`" for key in doc.hive_keys)
    name = doc.name.rpartition(".")[2]
    return f"| `{name}` | `{doc.default}` | `{doc.env}` | {keys} | {doc.description} |"


if __name__ == "__main__":
    sys.stdout.write(settings_page())
