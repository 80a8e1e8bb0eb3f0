"""Who lives at a location, or in it, or around it: asked before anything is removed that the catalogue has forgotten.

Two locations are compared as Hadoop's `Path` sees them: `file:/w/t`, `file:///w//t/` and `/w/t` are one place. Two
buckets of an object store are two places; of other authorities nobody knows whether they are the same one (`hdfs://ns`
and `hdfs://host:8020`), so they count as the same. The catalogue has no index by location: a question reads all of them
once, in the database.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from compactor.metastore.catalog import CATALOG, TableName
from compactor.metastore.catalog_schema import DBS, PARTITIONS, SDS, TBLS
from compactor.metastore.database import Database, retried

_OBJECT_STORES = frozenset({"s3", "gs", "abfs", "wasb", "oss", "cos", "adl"})
_IDS_A_STATEMENT = 500
_SAME_SCHEME = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "wasb"}


@dataclass(frozen=True, kw_only=True)
class Place:
    """A location taken apart. scheme: '' when it has none. parts: of the path, without '.', '..' and empty ones."""

    scheme: str
    authority: str
    parts: tuple[str, ...]

    @classmethod
    def of(cls, location: str) -> Place:
        """Read a location as the metastore stores it: `scheme://authority/path`, `scheme:/path` or `/path`."""
        scheme, colon, rest = location.partition(":")
        if not colon or "/" in scheme:
            scheme, rest = "", location
        authority = ""
        if rest.startswith("//"):
            authority, slash, path = rest[2:].partition("/")
            rest = slash + path
        parts: list[str] = []
        for part in rest.split("/"):
            if part == "..":
                del parts[-1:]
            elif part not in {"", "."}:
                parts.append(part)
        scheme = scheme.lower()
        return cls(scheme=_SAME_SCHEME.get(scheme, scheme), authority=authority, parts=tuple(parts))

    def is_same(self, other: Place) -> bool:
        return self._is_beside(other) and self.parts == other.parts

    def is_in(self, other: Place) -> bool:
        """Is this the other place, or below it?"""
        return self._is_beside(other) and self.parts[: len(other.parts)] == other.parts

    def _is_beside(self, other: Place) -> bool:
        """May both be in one file system?"""
        if not {self.scheme, other.scheme} & _OBJECT_STORES:
            return True
        return (self.scheme, self.authority) == (other.scheme, other.authority)


@dataclass(frozen=True, kw_only=True)
class Occupant:
    """Something of a catalogue and where it lives. table None: the database itself; partition None: the table itself."""

    catalog: str
    database: str
    table: str | None = None
    partition: str | None = None
    place: Place

    @property
    def name(self) -> str:
        """`database d`, `d.t` or `d.t/p=x`."""
        if self.table is None:
            return f"database {self.database}"
        return f"{self.database}.{self.table}" + ("" if self.partition is None else f"/{self.partition}")

    def is_of(self, table: TableName, partition: str | None) -> bool:
        """Is it exactly this table, or this partition, of Hive's own catalogue?"""
        named = (self.catalog, self.database, self.table, self.partition)
        return named == (CATALOG, table.database, table.table, partition)


@retried
def occupants(db: Database, location: str) -> list[Occupant]:
    """Tables and partitions, of every catalogue, whose location is this one, or below or above it.

    A database counts when it lives there or below: everything lives below some database.
    """
    place = Place.of(location)
    with db.read() as conn:
        return [*_of_tables(conn, place), *_databases(conn, place)]


def _of_tables(conn: sa.Connection, place: Place) -> Iterator[Occupant]:
    """Tables and partitions: first where something lives, then who."""
    rows = conn.execute(sa.select(SDS.c.SD_ID, SDS.c.LOCATION).where(_may_meet(SDS.c.LOCATION, place)))
    places = {sd_id: Place.of(location) for sd_id, location in rows}
    met = [sd_id for sd_id, other in places.items() if place.is_in(other) or other.is_in(place)]
    owners = TBLS.join(DBS, DBS.c.DB_ID == TBLS.c.DB_ID)
    of_partitions = owners.join(PARTITIONS, PARTITIONS.c.TBL_ID == TBLS.c.TBL_ID)
    names = (DBS.c.CTLG_NAME, DBS.c.NAME, TBLS.c.TBL_NAME)
    for start in range(0, len(met), _IDS_A_STATEMENT):
        some = met[start : start + _IDS_A_STATEMENT]
        tables = sa.select(*names, sa.null(), TBLS.c.SD_ID).select_from(owners).where(TBLS.c.SD_ID.in_(some))
        partitions = sa.select(*names, PARTITIONS.c.PART_NAME, PARTITIONS.c.SD_ID).select_from(of_partitions)
        for query in (tables, partitions.where(PARTITIONS.c.SD_ID.in_(some))):
            for catalog, database, table, partition, sd_id in conn.execute(query):
                of = places[sd_id]
                yield Occupant(catalog=catalog, database=database, table=table, partition=partition, place=of)


def _databases(conn: sa.Connection, place: Place) -> Iterator[Occupant]:
    for column in (DBS.c.DB_LOCATION_URI, DBS.c.DB_MANAGED_LOCATION_URI):
        rows = conn.execute(sa.select(DBS.c.CTLG_NAME, DBS.c.NAME, column).where(_may_meet(column, place)))
        for catalog, database, location in rows:
            if (of := Place.of(location)).is_in(place):
                yield Occupant(catalog=catalog, database=database, place=of)


def _may_meet(location: sa.ColumnElement[Any], place: Place) -> sa.ColumnElement[bool]:
    """Whoever lives there or below has its last name in his location; whoever lives above ends in a name on the way."""
    *above, last = place.parts or ("",)
    on_the_way = sorted({"/", place.authority, *above} - {""})
    endings = [location.endswith(name, autoescape=True) for name in on_the_way]
    return sa.or_(location.contains(last, autoescape=True), *endings)
