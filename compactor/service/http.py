"""The two pages that every role serves: /metrics for Prometheus, /healthz for whoever restarts processes.

/healthz answers 200 {"status": "ok", "roles": {…}} or 503 with the reasons: a role that is stuck, or a metastore that
does not answer. It never depends on the outcome of the work: failed compactions are for the metrics.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app

from compactor.errors import CompactorError, ConfigError
from compactor.service.loop import CycleStatus

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

JSON: Final = ("Content-Type", "application/json; charset=utf-8")

_log = structlog.get_logger(__name__)


class StatusServer:
    """Serves both pages on threads of its own while the body of the `with` runs.

    registry: what /metrics shows. roles: the loops' state. ping: raises a CompactorError when the metastore does not
    answer. port 0 picks a free one; `port` says which. Raises ConfigError when the address cannot be used.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        registry: CollectorRegistry,
        roles: Callable[[], Sequence[CycleStatus]],
        ping: Callable[[], object],
    ) -> None:
        self._roles = roles
        self._ping = ping
        self._metrics_page = make_wsgi_app(registry)
        try:
            self._server = _server_class(host)((host, port), _QuietHandler)
        except OSError as error:
            raise ConfigError(
                f"metrics.host and metrics.port: cannot listen on {host}:{port}: {error.strerror or error}",
                hint="another role may serve there already: give each its own metrics.port, or 0 for any free one",
            ) from error
        self._server.set_app(self._answer)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="http", daemon=True)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        _log.info("serving /metrics and /healthz", host=self._server.server_address[0], port=self.port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        page: WSGIApplication
        match environ["PATH_INFO"]:
            case "/metrics":
                page = self._metrics_page
            case "/healthz":
                page = self._health_page
            case _:
                page = _not_found
        return page(environ, start_response)

    def _health_page(self, _environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        roles = self._roles()
        problems = [f"{role.name}: {_stuck(role)}" for role in roles if role.stale]
        try:
            self._ping()
        except CompactorError as error:
            problems.append(f"metastore: {error.message}")
        body = {
            "status": "unhealthy" if problems else "ok",
            "roles": {
                role.name: {
                    "state": "running" if role.running else "waiting",
                    "age_s": round(role.age_s, 1),
                    "failures_in_a_row": role.failures_in_a_row,
                }
                for role in roles
            },
            **({"problems": problems} if problems else {}),
        }
        start_response("503 Service Unavailable" if problems else "200 OK", [JSON])
        return [json.dumps(body).encode()]


def _stuck(role: CycleStatus) -> str:
    what = "one cycle has been running" if role.running else "no cycle began"
    return f"{what} for {role.age_s:.0f} s"


def _not_found(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("404 Not Found", [JSON])
    return [b'{"error": "not found", "pages": ["/metrics", "/healthz"]}']


class _Server(ThreadingMixIn, WSGIServer):
    """A slow scrape must not hold up a health check."""

    daemon_threads = True

    def server_bind(self) -> None:
        # WSGIServer would look the host's name up, which can take seconds where there is no DNS.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


def _server_class(host: str) -> type[_Server]:
    return _Server6 if ":" in host else _Server


class _QuietHandler(WSGIRequestHandler):
    """Scrapes every few seconds are no news."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the parent's name
        _log.debug("request", request=format % args)

    def address_string(self) -> str:
        return str(self.client_address[0])
