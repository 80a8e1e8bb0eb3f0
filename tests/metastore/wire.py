"""A wire between a client and a database server that can be cut at any statement: a TCP proxy with real sockets."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType

_CHUNK = 1 << 16


class Wire:
    """Passes bytes on in both directions until it is told to break; then it stays broken until it is mended.

    A client that speaks SQL sends a request and waits for its answer, so what arrives at once is a request.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._lock = threading.Lock()
        self._ends: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._break_at: int | None = None
        self._after_answer = False
        self.requests = 0
        """Requests since it was last told to break."""
        self.is_cut = False
        """Has it broken since it was told to?"""

    def __enter__(self) -> Wire:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # closing alone does not wake who waits in accept()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._hang_up()
        for thread in self._threads:
            thread.join(30)

    def break_at(self, request: int, *, after_answer: bool) -> None:
        """Break at the n-th request from now on: before the server gets it, or when it has answered but nobody heard."""
        with self._lock:
            self._break_at, self._after_answer = request, after_answer
            self.requests, self.is_cut = 0, False

    def mend(self) -> None:
        """Pass everything on from now on; connections of the past stay broken."""
        self._hang_up()
        with self._lock:
            self._break_at, self.is_cut = None, False

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.is_cut:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._server_port))
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._ends |= {client, server}
            answered = threading.Event()
            self._start(self._pass_requests, client, server, answered)
            self._start(self._pass_answers, client, server, answered)

    def _pass_requests(self, client: socket.socket, server: socket.socket, answered: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(_CHUNK):
                with self._lock:
                    self.requests += 1
                    is_the_one = self.requests == self._break_at
                    if is_the_one:
                        self.is_cut = True
                    if is_the_one and self._after_answer:
                        answered.set()
                if is_the_one and not self._after_answer:
                    break
                server.sendall(data)
        if not answered.is_set():
            self._close(client, server)

    def _pass_answers(self, client: socket.socket, server: socket.socket, unheard: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(_CHUNK):
                if unheard.is_set():
                    break
                client.sendall(data)
        self._close(client, server)

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _hang_up(self) -> None:
        with self._lock:
            ends = list(self._ends)
        self._close(*ends)

    def _close(self, *ends: socket.socket) -> None:
        for end in ends:
            # wakes the other thread, which waits in recv()
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        with self._lock:
            self._ends -= set(ends)
