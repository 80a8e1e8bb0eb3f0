"""Hive's way to its database, a JDBC URL with user and password, as a SQLAlchemy URL.

Only parameters that decide where a connection goes or how it is protected have a meaning; what tunes Java's driver
(reWriteBatchedInserts, useServerPrepStmts, …) is left behind. Protection is never weakened: what cannot be carried
over, such as a Java key store, is an error.

Sources: PgJDBC `PGProperty`, MySQL Connector/J `PropertyKey`, MariaDB Connector/J `SslMode`; libpq's parameter key
words; PyMySQL `Connection._create_ssl_ctx`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote

import sqlalchemy as sa

from compactor.errors import ConfigError

_SUPPORTED = "PostgreSQL, MySQL and MariaDB can be shared with Hive"
_HINT = "set database_url (COMPACTOR_DATABASE_URL) to a SQLAlchemy URL; it goes before what hive-site.xml says"
_URL = re.compile(
    r"jdbc:(?P<product>\w+):(?://(?P<hosts>[^/?]*)/)?/?(?P<database>[^?/]*)(?:\?(?P<query>.*))?", re.DOTALL
)
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::(?P<port>\d+))?")
_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306}
_SAME_IN_LIBPQ = ("sslmode", "sslrootcert", "sslcert", "options")
_SERVER_TYPES = {"primary": "read-write", "master": "read-write", "any": "any"}
_MYSQL_MODES = {
    "DISABLED": "DISABLED",
    "DISABLE": "DISABLED",
    "PREFERRED": "PREFERRED",
    "REQUIRED": "REQUIRED",
    "TRUST": "REQUIRED",
    "VERIFY_CA": "VERIFY_CA",
    "VERIFY_IDENTITY": "VERIFY_IDENTITY",
    "VERIFY_FULL": "VERIFY_IDENTITY",
}
_KEY_STORES = frozenset({"truststore", "keystore", "trustcertificatekeystoreurl", "clientcertificatekeystoreurl"})


def sqlalchemy_url(jdbc: str, *, user: str, password: str) -> str:
    """The SQLAlchemy URL of the database that a JDBC URL leads to; user and password: "" when they are in the URL.

    ConfigError for a product, a form or a protection that we have not; no message shows the URL's parameters, which
    may hold the password.
    """
    match = _URL.fullmatch(jdbc)
    product = match["product"].lower() if match else ""
    shown = re.sub("//[^/]*@", "//…@", jdbc.partition("?")[0])
    if match is None or product not in _PORTS:
        raise ConfigError(f"{shown} is no database that we can use; allowed: {_SUPPORTED}", hint=_HINT)
    if not match["database"]:
        raise ConfigError(f"{shown} names no database", hint=_HINT)
    given = dict(parse_qsl(match["query"] or "", keep_blank_values=True))
    hosts = [_host(text, product, shown) for text in (match["hosts"] or "localhost").split(",")]
    query = _libpq(given) if product == "postgresql" else _pymysql(given, shown)
    if len(hosts) > 1:
        if product != "postgresql":
            raise ConfigError(f"{shown} names several hosts", hint=_HINT)
        query["host"] = tuple(f"{name}:{port}" for name, port in hosts)
    name, port = hosts[0] if len(hosts) == 1 else (None, None)
    url = sa.URL.create(
        product if product == "postgresql" else "mysql",
        username=user or given.get("user") or None,
        password=password or given.get("password") or None,
        host=name,
        port=port,
        database=unquote(match["database"]),
        query=query,
    )
    return url.render_as_string(hide_password=False)


def _host(text: str, product: str, shown: str) -> tuple[str, int]:
    match = _HOST.fullmatch(text or "localhost")
    if match is None:
        raise ConfigError(f"{shown} has no plain host names and ports", hint=_HINT)
    return match["name"].strip("[]"), int(match["port"] or _PORTS[product])


def _libpq(given: Mapping[str, str]) -> dict[str, str | tuple[str, ...]]:
    """libpq's key words; many are PgJDBC's own."""
    query: dict[str, str | tuple[str, ...]] = {k: given[k] for k in _SAME_IN_LIBPQ if given.get(k)}
    if "sslmode" not in query and _is_true(given.get("ssl")):
        query["sslmode"] = "verify-full"
    if given.get("sslkey"):
        raise ConfigError(
            "javax.jdo.option.ConnectionURL has an sslkey in Java's format", hint="libpq reads PEM; " + _HINT
        )
    if schema := given.get("currentSchema"):
        query["options"] = f"{query.get('options', '')} -c search_path={schema}".strip()
    if name := given.get("ApplicationName"):
        query["application_name"] = name
    if wanted := _SERVER_TYPES.get(given.get("targetServerType", "")):
        query["target_session_attrs"] = wanted
    return query


def _pymysql(given: Mapping[str, str], shown: str) -> dict[str, str | tuple[str, ...]]:
    """SQLAlchemy's key words for PyMySQL, which encrypts as soon as there is one that begins with ssl_."""
    lower = {name.lower(): value for name, value in given.items()}
    stated = lower.get("sslmode", "").replace("-", "_").upper()
    mode = _MYSQL_MODES.get(stated, stated)
    if not mode and any(_is_true(lower.get(name)) for name in ("usessl", "requiressl")):
        mode = "VERIFY_CA" if _is_true(lower.get("verifyservercertificate")) else "REQUIRED"
    if mode in {"", "DISABLED", "PREFERRED"}:
        return {}
    if mode == "REQUIRED":
        return {"ssl_check_hostname": "false"}
    authority = lower.get("serversslcert", "")
    if mode not in _MYSQL_MODES or not authority or _KEY_STORES & lower.keys():
        raise ConfigError(
            f"{shown} asks for a verified server ({mode}) by what only Java can read",
            hint=f"give the authority's certificate as PEM: mysql://user:password@host/database?ssl_ca=FILE; {_HINT}",
        )
    return {"ssl_ca": authority, "ssl_check_hostname": str(mode == "VERIFY_IDENTITY").lower()}


def _is_true(value: str | None) -> bool:
    """Java's drivers take a parameter without a value for true."""
    return value is not None and value.lower() in {"", "true"}
