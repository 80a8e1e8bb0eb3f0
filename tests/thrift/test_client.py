"""Calls over Thrift against a real server of the same protocol: fail-over, time-outs, lost answers, errors."""

from __future__ import annotations

import contextlib
import io
import socketserver
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import thriftpy2
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TApplicationException, TProcessor
from thriftpy2.transport import TBufferedTransport, TFramedTransport, TSocket, TTransportException

from compactor.errors import (
    CommitOutcomeUnknown,
    CompactorError,
    ConfigError,
    DatabaseUnavailable,
    MetastoreError,
    NoSuchTransaction,
    TransactionAborted,
    WriteConflict,
)
from compactor.thrift.client import Address, MetastoreClient, api

ALIVE = 2
COMMIT = api.CommitTxnRequest(txnid=7)


class Server(socketserver.ThreadingTCPServer):
    """A metastore that answers `getStatus` and commits transactions, on a port of its own.

    commit: what happens in `commit_txn` after it was counted.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(
        self,
        commit: Callable[[], None] = lambda: None,
        *,
        framed: bool = False,
        port: int = 0,
        service: Any = api.ThriftHiveMetastore,
    ) -> None:
        super().__init__(("127.0.0.1", port), _Conversation)
        self.commit, self.framed, self.service = commit, framed, service
        self.commits = self.conversations = 0
        self.ended = threading.Event()
        self._open: list[Any] = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def uri(self) -> str:
        return f"thrift://127.0.0.1:{self.port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.append(request)
        self.conversations += 1
        super().process_request(request, client_address)

    def getStatus(self) -> int:  # noqa: N802 -- Hive's name
        return ALIVE

    def commit_txn(self, rqst: Any) -> None:
        assert rqst == COMMIT
        self.commits += 1
        self.commit()

    def stop(self) -> None:
        """As a crash: every connection breaks off."""
        self.ended.set()
        self.shutdown()
        self.server_close()
        for request in self._open:
            self.shutdown_request(request)
        self._thread.join()


class _Conversation(socketserver.BaseRequestHandler):
    server: Server

    def handle(self) -> None:
        framing = TFramedTransport if self.server.framed else TBufferedTransport
        protocol = TBinaryProtocol(framing(TSocket(sock=self.request)))
        processor = TProcessor(self.server.service, self.server)
        with contextlib.suppress(TTransportException, OSError, CutOff):
            while True:
                try:
                    processor.process(protocol, protocol)
                except TApplicationException as error:
                    processor.send_exception(protocol, "commit_txn", error, 0)


class CutOff(Exception):
    """Ends a conversation without an answer."""


def cut_off() -> None:
    raise CutOff


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    with contextlib.ExitStack() as running:

        def start(*arguments: Any, **options: Any) -> Server:
            server = Server(*arguments, **options)
            running.callback(server.stop)
            return server

        yield start


def client_of(*uris: str, timeout_s: float = 20, framed: bool = False) -> MetastoreClient:
    return MetastoreClient(uris, timeout_s=timeout_s, framed=framed, sleep=lambda _: None)


def dead_uri() -> str:
    server = Server()
    server.stop()
    return server.uri


@pytest.mark.parametrize("framed", [False, True])
def test_a_call_is_answered_over_either_transport(start: Callable[..., Server], framed: bool) -> None:
    server = start(framed=framed)
    client = client_of(server.uri, framed=framed)
    assert client.call("getStatus") == ALIVE
    assert client.call("commit_txn", COMMIT) is None
    assert server.commits == 1


def test_calls_that_follow_each_other_share_a_connection(start: Callable[..., Server]) -> None:
    server = start()
    client = client_of(server.uri)
    for _ in range(3):
        client.call("getStatus")
    assert server.conversations == 1


def test_calls_at_the_same_time_do_not_share_a_connection(start: Callable[..., Server]) -> None:
    both = threading.Barrier(2, timeout=30)
    server = start(lambda: both.wait() and None)
    client = client_of(server.uri)
    threads = [threading.Thread(target=client.call, args=("commit_txn", COMMIT)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (server.commits, server.conversations) == (2, 2)


def test_an_address_that_is_dead_is_passed_over_once(start: Callable[..., Server]) -> None:
    server = start()
    client = client_of(dead_uri(), server.uri)
    client.call("commit_txn", COMMIT)
    client.call("commit_txn", COMMIT)
    assert server.commits == 2


def test_after_the_last_address_comes_the_first(start: Callable[..., Server]) -> None:
    first, second = start(), start()
    client = client_of(first.uri, second.uri)
    client.call("getStatus")
    first.stop()
    client.call("getStatus")
    again = start(port=first.port)
    second.stop()
    client.call("commit_txn", COMMIT)
    assert again.commits == 1


def test_a_metastore_that_was_started_again_is_found_without_losing_a_call(start: Callable[..., Server]) -> None:
    server = start()
    client = client_of(server.uri)
    client.call("getStatus")
    server.stop()
    again = start(port=server.port)
    # Not repeatable: the broken connection must be noticed before anything is sent.
    client.call("commit_txn", COMMIT)
    assert again.commits == 1


def test_no_answer_from_anyone_is_an_error_that_names_them(start: Callable[..., Server]) -> None:
    uris = (dead_uri(), dead_uri())
    with pytest.raises(DatabaseUnavailable) as error:
        client_of(*uris).call("getStatus", repeatable=True)
    assert all(uri.removeprefix("thrift://") in error.value.message for uri in uris)


def test_a_lost_answer_leaves_the_outcome_open_and_nothing_is_sent_twice(start: Callable[..., Server]) -> None:
    first, second = start(cut_off), start()
    with pytest.raises(CommitOutcomeUnknown, match="commit_txn"):
        client_of(first.uri, second.uri).call("commit_txn", COMMIT)
    assert (first.commits, second.commits) == (1, 0)


def test_what_may_be_repeated_is_asked_of_the_next_address(start: Callable[..., Server]) -> None:
    first, second = start(cut_off), start()
    client_of(first.uri, second.uri).call("commit_txn", COMMIT, repeatable=True)
    assert (first.commits, second.commits) == (1, 1)


def test_repeating_ends(start: Callable[..., Server]) -> None:
    server = start(cut_off)
    with pytest.raises(DatabaseUnavailable):
        client_of(server.uri).call("commit_txn", COMMIT, repeatable=True)
    assert server.commits == 2


def test_a_metastore_that_hangs_is_given_up_in_time(start: Callable[..., Server]) -> None:
    server = start()
    server.commit = lambda: server.ended.wait() and None
    client = client_of(server.uri, timeout_s=600)
    with pytest.raises(CommitOutcomeUnknown):
        client.call("commit_txn", COMMIT, timeout_s=0.05)
    assert client.call("getStatus") == ALIVE


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        (api.NoSuchTxnException(message="gone"), NoSuchTransaction),
        (api.TxnAbortedException(message="Transaction txnid:7 already aborted"), TransactionAborted),
        (api.TxnAbortedException(message="Aborting [txnid:7,9] due to a write conflict on d/t"), WriteConflict),
        (TApplicationException(TApplicationException.INTERNAL_ERROR, "the database is gone"), CommitOutcomeUnknown),
    ],
)
def test_what_the_metastore_refuses_is_an_error_of_ours(
    start: Callable[..., Server], sent: Exception, meant: type[CompactorError]
) -> None:
    server = start(failing(sent))
    with pytest.raises(CompactorError) as error:
        client_of(server.uri).call("commit_txn", COMMIT)
    assert type(error.value) is meant
    assert getattr(sent, "message", "") in error.value.message


def test_an_older_metastore_is_recognised(start: Callable[..., Server]) -> None:
    old = thriftpy2.load_fp(io.StringIO("service Hive3 { i32 getStatus() }"), "hive3_thrift").Hive3
    server = start(service=old)
    client = client_of(server.uri)
    assert client.call("getStatus") == ALIVE
    with pytest.raises(MetastoreError) as error:
        client.call("find_next_compact2", api.FindNextCompactRequest())
    assert "4.0" in error.value.hint


@pytest.mark.parametrize("uri", ["http://host:9083", "host:9083", "thrift://", "thrift://host:port", ""])
def test_what_is_no_address_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError):
        Address.parse(uri)


def test_an_address_has_hives_port_unless_it_says_otherwise() -> None:
    assert Address.parse(" thrift://hms.example ") == Address(host="hms.example", port=9083)
    assert Address.parse("thrift://[::1]:1") == Address(host="::1", port=1)
