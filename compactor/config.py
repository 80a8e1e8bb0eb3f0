"""Where settings come from.

Precedence, lowest first:

1. the defaults of `compactor.settings`, which are Hive's;
2. hive-site.xml (`--hive-site`), under Hive's own key names;
3. compactor.toml (`--config`, else $COMPACTOR_CONFIG, else ./compactor.toml when it exists);
4. environment: COMPACTOR_<SECTION>__<FIELD>, e.g. COMPACTOR_WORKER__THREADS=2, and five stable short names
   (COMPACTOR_CONFIG, COMPACTOR_DATABASE_URL, COMPACTOR_METASTORE_URIS, COMPACTOR_SPARK_MASTER,
   COMPACTOR_METRICS_PORT);
5. the command line.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from compactor.errors import ConfigError
from compactor.hive_site import HIVE_KEYS, METASTORE_URIS, HiveSite, read_hive_site
from compactor.settings import Settings

__all__ = ["SettingDoc", "Settings", "describe_settings", "load_settings"]

DEFAULT_FILE = "compactor.toml"
ENV_PREFIX = "COMPACTOR_"
ENV_DELIMITER = "__"
CONFIG_VARIABLE = "COMPACTOR_CONFIG"
SHORT_VARIABLES = {
    "COMPACTOR_DATABASE_URL": "database_url",
    "COMPACTOR_METASTORE_URIS": "metastore.uris",
    "COMPACTOR_SPARK_MASTER": "spark.master",
    "COMPACTOR_METRICS_PORT": "metrics.port",
}
SECRET_SETTINGS = frozenset({"database_url"})


@dataclass(frozen=True, kw_only=True)
class SettingDoc:
    """One setting as the documentation shows it. default: as TOML would spell it."""

    name: str
    default: str
    env: str
    hive_keys: tuple[str, ...]
    description: str


@dataclass(frozen=True, kw_only=True)
class _Sourced:
    """A raw value with the name its source gives it, for messages."""

    value: object
    label: str
    source: str


def load_settings(
    *,
    config: Path | None = None,
    hive_site: Path | None = None,
    environ: Mapping[str, str],
    overrides: Mapping[str, object] | None = None,
) -> Settings:
    """Settings from all sources, in the precedence that stands at the top of this module.

    config, hive_site: files named on the command line. overrides: dotted setting names from the command line, e.g.
    {"worker.threads": 2}; a None is skipped. Raises ConfigError, which names the field as its source spells it, the
    source, the value and what is allowed.
    """
    found: dict[str, _Sourced] = {}
    toml = _toml_file(config, environ)
    if toml is not None:
        found |= _from_toml(toml)
    found |= _from_environ(environ)
    for name, value in (overrides or {}).items():
        if value is not None:
            _require_known(name, label=name, source="the command line")
            found[name] = _Sourced(value=value, label=name, source="the command line")
    warnings: list[str] = []
    if hive_site is not None:
        site = read_hive_site(hive_site, environ)
        has_metastore = not found.keys().isdisjoint({"database_url", METASTORE_URIS})
        found = _from_hive_site(site, str(hive_site), has_metastore=has_metastore) | found
        if site.meaningless:
            warnings.append(f"{hive_site}: these Hive keys change nothing here: {', '.join(site.meaningless)}")
    try:
        settings = Settings.model_validate(_nested(found))
    except ValidationError as error:
        raise _explain(error, found) from error
    return settings.with_warnings(tuple(warnings))


def describe_settings() -> list[SettingDoc]:
    """Every setting in the order of this module; docs/settings.md is made from it."""
    hive_keys = {key.setting: key.names for key in HIVE_KEYS}
    return [
        SettingDoc(
            name=name,
            default=_default_text(name, field),
            env=_variable(name),
            hive_keys=hive_keys.get(name, ()),
            description=field.description or "",
        )
        for name, field in _fields(Settings)
    ]


def _fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _fields(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, field


_FIELDS = dict(_fields(Settings))


def _variable(name: str) -> str:
    short = {setting: variable for variable, setting in SHORT_VARIABLES.items()}
    return short.get(name, ENV_PREFIX + name.replace(".", ENV_DELIMITER).upper())


def _default_text(name: str, field: FieldInfo) -> str:
    if name == "warehouse":
        return '"file:<current directory>/warehouse"'
    default = field.get_default(call_default_factory=True, validated_data={})
    return json.dumps(default, ensure_ascii=False)


def _from_hive_site(site: HiveSite, source: str, *, has_metastore: bool) -> dict[str, _Sourced]:
    """Hive's metastore is looked at only when nothing above the file says where ours is.

    Where the file names both its database and its Thrift service, the database is taken: all roles can use it.
    """
    database = None if has_metastore else site.database_url()
    values = (*site.values, database) if database else site.values
    if has_metastore or database:
        values = tuple(v for v in values if v.setting != METASTORE_URIS)
    return {v.setting: _Sourced(value=v.value, label=v.key, source=source) for v in values}


def _toml_file(config: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The file to read: named ones must exist, the one in the current directory may be missing."""
    if config is not None:
        return config
    if environ.get(CONFIG_VARIABLE):
        return Path(environ[CONFIG_VARIABLE])
    return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else None


def _from_toml(path: Path) -> dict[str, _Sourced]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}", hint="check --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no well-formed TOML: {error}", hint="texts need quotation marks") from error
    found: dict[str, _Sourced] = {}
    for name, value in _leaves(document):
        _require_known(name, label=name, source=str(path))
        found[name] = _Sourced(value=value, label=name, source=str(path))
    return found


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        name = prefix + key
        if not isinstance(value, dict):
            yield name, value
        elif name in _FIELDS:
            # Unquoted Spark properties (spark.executor.memory = "2g") arrive as tables in tables.
            yield name, dict(_leaves(value))
        else:
            yield from _leaves(value, f"{name}.")


def _from_environ(environ: Mapping[str, str]) -> dict[str, _Sourced]:
    """COMPACTOR_* variables. A name without the delimiter that is no setting is not ours (Kubernetes makes some)."""
    found: dict[str, _Sourced] = {}
    for variable, value in environ.items():
        if not variable.startswith(ENV_PREFIX):
            continue
        name = variable.removeprefix(ENV_PREFIX).lower().replace(ENV_DELIMITER, ".")
        if ENV_DELIMITER in variable:
            _require_known(name, label=variable, source="the environment")
        if name in _FIELDS:
            found[name] = _Sourced(value=value, label=variable, source="the environment")
    for variable, setting in SHORT_VARIABLES.items():
        if variable in environ:
            found[setting] = _Sourced(value=environ[variable], label=variable, source="the environment")
    return found


def _require_known(name: str, *, label: str, source: str) -> None:
    if name in _FIELDS:
        return
    close = difflib.get_close_matches(name, _FIELDS, n=1, cutoff=0.6)
    spelling = _variable(close[0]) if close and label.startswith(ENV_PREFIX) else "".join(close)
    hint = f"did you mean {spelling}?" if close else "docs/settings.md lists every setting"
    raise ConfigError(f"{label} in {source} is no setting", hint=hint)


def _nested(found: Mapping[str, _Sourced]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, sourced in found.items():
        *parents, leaf = name.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = sourced.value
    return tree


def _explain(error: ValidationError, found: Mapping[str, _Sourced]) -> ConfigError:
    """The first wrong value, in the words of its source."""
    first = error.errors(include_url=False)[0]
    location = ".".join(str(part) for part in first["loc"])
    name = next(name for name in _FIELDS if location == name or location.startswith(f"{name}."))
    sourced = found[name]
    allowed = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    value = "(not shown)" if name in SECRET_SETTINGS else repr(sourced.value)
    message = f"{sourced.label} in {sourced.source} is {value}; allowed: {allowed}"
    return ConfigError(
        message, hint=f"{name}: {_FIELDS[name].description} Default: {_default_text(name, _FIELDS[name])}"
    )
