"""Calls of Hive's metastore over Thrift: connections, fail-over, time-outs, and what an error means.

1. A call goes to the address that answered last, over a connection of its own; idle ones are kept for later calls.
2. An address that cannot be reached is followed by the next one, in the order of the setting; after the last comes the
   first, once more. Then it is DatabaseUnavailable: nothing was sent.
3. A connection that breaks off during a call leaves open whether the metastore did it. A call that may be repeated is
   made again as in 2; any other is CommitOutcomeUnknown, and its caller reads the state back.
4. What the metastore refuses becomes the error that our own functions on its database raise.

Binary protocol, buffered or framed; no SASL, TLS or HTTP. Source: Hive `HiveMetaStoreClient`, `hive_metastore.thrift`
(`hive_metastore.thrift` beside this file has the part that is used here).
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
import thriftpy2
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.protocol.exc import TProtocolException
from thriftpy2.thrift import TApplicationException, TClient, TException
from thriftpy2.transport import TBufferedTransport, TFramedTransport, TSocket, TTransportException

from compactor.errors import (
    CommitOutcomeUnknown,
    ConfigError,
    DatabaseUnavailable,
    MetastoreError,
    NoSuchLock,
    NoSuchObject,
    NoSuchTransaction,
    TransactionAborted,
    WriteConflict,
)

DEFAULT_PORT: Final = 9083
CONNECT_TIMEOUT_S: Final = 10.0
"""An address that does not answer in this time is passed over."""
_ROUNDS: Final = 2
_ROUND_PAUSE_S: Final = 1.0
_BROKEN = (TTransportException, TProtocolException, OSError, EOFError)
_NO_ANSWER_HINT = "check COMPACTOR_METASTORE_URIS, and that the metastore asks for neither SASL nor TLS"

_log = structlog.get_logger(__name__)


def _load() -> Any:
    with as_file(files(__package__) / "hive_metastore.thrift") as idl:
        return thriftpy2.load(str(idl), module_name="hive_metastore_thrift")


api: Any = _load()
"""Hive's structs, enums and exceptions, under their own names."""


_MISSING: Final[dict[type, type[MetastoreError]]] = {
    api.NoSuchObjectException: NoSuchObject,
    api.NoSuchTxnException: NoSuchTransaction,
    api.NoSuchLockException: NoSuchLock,
}


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a metastore listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, uri: str) -> Address:
        """Read `thrift://host:port`; ConfigError when it is anything else."""
        try:
            parts = urlsplit(uri.strip())
            host, port = parts.hostname, parts.port or DEFAULT_PORT
        except ValueError:
            host, port = None, 0
        if host is None or parts.scheme != "thrift":
            raise ConfigError(
                f"{uri!r} is no address of a metastore", hint=f"for example thrift://metastore.example:{DEFAULT_PORT}"
            )
        return cls(host=host, port=port)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class _Connection:
    """One connection, used by one call at a time."""

    def __init__(self, address: Address, *, framed: bool, timeout_s: float) -> None:
        self.address = address
        self._socket = socket.create_connection((address.host, address.port), min(timeout_s, CONNECT_TIMEOUT_S))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport = (TFramedTransport if framed else TBufferedTransport)(TSocket(sock=self._socket))
        self._client = TClient(api.ThriftHiveMetastore, TBinaryProtocol(transport))

    def call(self, method: str, arguments: Sequence[Any], timeout_s: float) -> Any:
        self._socket.settimeout(timeout_s)
        return getattr(self._client, method)(*arguments)

    def is_fresh(self) -> bool:
        """Something to read now, between two calls, could only be the other side's farewell."""
        readable, _, _ = select.select([self._socket], [], [], 0)
        return not readable

    def close(self) -> None:
        self._socket.close()


class MetastoreClient:
    """Makes calls from any thread; a connection is used by one at a time.

    timeout_s: for one answer. framed: the framed transport instead of the buffered one. sleep: replaces the pause
    between two rounds over all addresses.
    """

    def __init__(
        self,
        uris: Sequence[str],
        *,
        timeout_s: float,
        framed: bool = False,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._addresses = [Address.parse(uri) for uri in uris]
        self._timeout_s, self._framed, self._sleep = timeout_s, framed, sleep
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._preferred = 0

    def call(self, method: str, *arguments: Any, repeatable: bool = False, timeout_s: float | None = None) -> Any:
        """The answer of the metastore to a call.

        repeatable: doing it twice is as good as once. timeout_s: less than the client's, for this call. Raises
        DatabaseUnavailable, CommitOutcomeUnknown, and as `_meaning` says.
        """
        limit = min(timeout_s or self._timeout_s, self._timeout_s)
        broken: Exception | None = None
        for attempt in range(_ROUNDS * len(self._addresses)):
            if attempt and attempt % len(self._addresses) == 0:
                self._sleep(_ROUND_PAUSE_S)
            address = self._address()
            try:
                connection = self._connection(address, limit)
            except OSError as error:
                broken = error
                self._pass_over(address, error)
                continue
            try:
                return self._answer(connection, method, arguments, limit)
            except _BROKEN as error:
                broken = error
                self._pass_over(address, error)
                if not repeatable:
                    raise CommitOutcomeUnknown(f"{address} did not answer {method}: {_text(error)}") from error
            except TException as error:
                raise _meaning(method, error, repeatable=repeatable) from error
        names = ", ".join(str(a) for a in self._addresses)
        raise DatabaseUnavailable(f"no metastore answers at {names}: {_text(broken)}", hint=_NO_ANSWER_HINT) from broken

    def close(self) -> None:
        """Close the idle connections; a call that runs closes its own."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _answer(self, connection: _Connection, method: str, arguments: Sequence[Any], timeout_s: float) -> Any:
        """One call; the connection is kept for the next one only when this one was answered."""
        try:
            answer = connection.call(method, arguments, timeout_s)
        except TException as error:
            if isinstance(error, _BROKEN):
                connection.close()
            else:
                self._keep(connection)
            raise
        except BaseException:
            connection.close()
            raise
        self._keep(connection)
        return answer

    def _address(self) -> Address:
        with self._lock:
            return self._addresses[self._preferred]

    def _pass_over(self, address: Address, error: Exception) -> None:
        _log.warning("the metastore did not answer", address=str(address), error=_text(error))
        with self._lock:
            # Another thread may have moved on already.
            if self._addresses[self._preferred] == address:
                self._preferred = (self._preferred + 1) % len(self._addresses)

    def _connection(self, address: Address, timeout_s: float) -> _Connection:
        while (idle := self._take_idle()) is not None:
            if idle.address == address and idle.is_fresh():
                return idle
            idle.close()
        return _Connection(address, framed=self._framed, timeout_s=timeout_s)

    def _take_idle(self) -> _Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _keep(self, connection: _Connection) -> None:
        with self._lock:
            self._idle.append(connection)


def _meaning(method: str, error: TException, *, repeatable: bool) -> MetastoreError:
    """What an answer that is an exception means to us."""
    text = _text(error)
    match error:
        case api.NoSuchObjectException() | api.NoSuchTxnException() | api.NoSuchLockException():
            return _MISSING[type(error)](text)
        case api.TxnAbortedException():
            # CommitTxnFunction tells a conflict by its words alone.
            return WriteConflict(text) if "write conflict" in text else TransactionAborted(text)
        case api.MetaException():
            return MetastoreError(f"the metastore failed in {method}: {text}", hint="look at the metastore's own log")
        case TApplicationException(type=TApplicationException.UNKNOWN_METHOD):
            return MetastoreError(
                f"the metastore does not know {method}",
                hint="workers over Thrift need a metastore of Hive 4.0 or newer; an older one is served through its "
                "database (COMPACTOR_DATABASE_URL)",
            )
        case _:
            # An undeclared exception over there: whether it came before or after the deed cannot be seen from here.
            kind = DatabaseUnavailable if repeatable else CommitOutcomeUnknown
            return kind(f"the metastore failed in {method}: {text}", hint="look at the metastore's own log")


def _text(error: BaseException | None) -> str:
    message = getattr(error, "message", None) or str(error)
    return message or type(error).__name__
