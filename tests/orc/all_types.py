"""Rows of every type that Arrow can hold, and plain ORC files of them as we encode them."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from compactor.acid.schema import parse_type
from compactor.orc.assembler import FileAssembler, Template
from compactor.orc.types import arrow_type
from tests.orc.acid_files import FS

ALL_TYPES = parse_type(
    "struct<id:bigint,flag:boolean,tiny:tinyint,small:smallint,int_:int,real:float,double_:double,city:string,"
    "name:string,code:char(4),label:varchar(9),raw:binary,day:date,moment:timestamp,"
    "instant:timestamp with local time zone,price:decimal(9,2),big:decimal(30,4),nothing:int,numbers:array<int>,"
    "words:array<string>,pairs:map<string,double>,nested:struct<a:int,b:string,c:array<date>>>"
)
_EPOCH = dt.datetime(1975, 1, 1)  # noqa: DTZ001
_DAY = dt.date(1970, 1, 1)


def all_types(rows: int, *, seed: int = 1, nulls: float = 0.2) -> pa.Table:
    """`rows` rows; `id` counts them. nulls: share of nulls in every other column but double_."""
    r = random.Random(seed)
    makers: dict[str, Callable[[], Any]] = {
        "flag": lambda: r.random() < 0.4,
        "tiny": lambda: r.randrange(-128, 128),
        "small": lambda: r.randrange(30_000),
        "int_": lambda: r.randrange(-(2**31), 2**31),
        "real": lambda: float(r.randrange(1000)),
        "double_": lambda: r.random() * 1e6,
        "city": lambda: f"city{r.randrange(40)}",
        "name": lambda: f"{r.getrandbits(64):x}é",
        "code": lambda: "abcd"[: r.randrange(1, 5)].ljust(4),
        "label": lambda: str(r.randrange(10**6)),
        "raw": lambda: r.randbytes(r.randrange(12)),
        "day": lambda: _DAY + dt.timedelta(r.randrange(-20_000, 30_000)),
        "moment": lambda: _EPOCH + dt.timedelta(seconds=r.randrange(2 * 10**9), microseconds=r.randrange(10**6)),
        "instant": lambda: (_EPOCH + dt.timedelta(seconds=r.randrange(2 * 10**9))).replace(tzinfo=dt.UTC),
        "price": lambda: decimal.Decimal(r.randrange(-(10**8), 10**8)).scaleb(-2),
        "big": lambda: decimal.Decimal(r.randrange(-(10**28), 10**28)).scaleb(-4),
        "nothing": lambda: None,
        "numbers": lambda: [r.choice([None, 1, r.randrange(10**6)]) for _ in range(r.randrange(4))],
        "words": lambda: [r.choice([None, "x", f"q{r.randrange(10**6)}"]) for _ in range(r.randrange(3))],
        "pairs": lambda: [(f"k{j}", r.choice([None, r.random()])) for j in range(r.randrange(3))],
        "nested": lambda: {"a": r.choice([None, 7]), "b": r.choice([None, "b"]), "c": r.choice([None, [], [_DAY]])},
    }
    arrays = [pa.array(range(rows), pa.int64())]
    for name, kind in ALL_TYPES.children[1:]:
        share = 0 if name == "double_" else nulls
        values = [None if r.random() < share else makers[name]() for _ in range(rows)]
        arrays.append(pa.array(values, arrow_type(kind)))
    return pa.Table.from_arrays(arrays, names=[name for name, _ in ALL_TYPES.children])


def write_stripes(
    path: Path, tables: Iterable[pa.Table], *, compression: int, block_size: int = 1 << 18, stride: int = 10_000
) -> Path:
    """A file of a stripe for each table."""
    template = Template.fresh(ALL_TYPES, compression=compression)
    with FS.write_atomically(str(path)) as stream:
        out = FileAssembler(stream, replace(template, block_size=block_size, stride=stride))
        for table in tables:
            out.append(table, None)
        out.finish(None)
    return path
