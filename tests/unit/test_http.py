from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Sequence

import pytest

from compactor.errors import ConfigError, DatabaseUnavailable
from compactor.service.http import StatusServer
from compactor.service.loop import CycleStatus
from compactor.service.metrics import Metrics

Serve = Callable[..., StatusServer]


def status(name: str, *, stale: bool = False, running: bool = False) -> CycleStatus:
    return CycleStatus(name=name, running=running, age_s=12.34, failures_in_a_row=1, stale=stale)


def get(server: StatusServer, path: str) -> tuple[int, str, str]:
    """(status, content type, body)"""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", path)
    response = connection.getresponse()
    answer = response.status, response.headers["Content-Type"], response.read().decode()
    connection.close()
    return answer


@pytest.fixture
def serve() -> Serve:
    def serve(
        *,
        roles: Sequence[CycleStatus] = (),
        ping: Callable[[], object] = lambda: None,
        metrics: Metrics | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> StatusServer:
        registry = (metrics or Metrics(version="0")).registry
        return StatusServer(host=host, port=port, registry=registry, roles=lambda: roles, ping=ping)

    return serve


def test_metrics_are_served_in_prometheus_text(serve: Serve) -> None:
    metrics = Metrics(version="1.2.3")
    metrics.files_removed.inc(7)
    with serve(metrics=metrics) as server:
        code, content_type, body = get(server, "/metrics")
    assert code == 200
    assert content_type.startswith("text/plain")
    assert 'compactor_build_info{version="1.2.3"} 1.0' in body
    assert "compactor_files_removed_total 7.0" in body


def test_a_healthy_process_says_so_with_the_state_of_its_roles(serve: Serve) -> None:
    with serve(roles=[status("initiator"), status("worker", running=True)]) as server:
        code, content_type, body = get(server, "/healthz")
    assert code == 200
    assert content_type == "application/json; charset=utf-8"
    assert json.loads(body) == {
        "status": "ok",
        "roles": {
            "initiator": {"state": "waiting", "age_s": 12.3, "failures_in_a_row": 1},
            "worker": {"state": "running", "age_s": 12.3, "failures_in_a_row": 1},
        },
    }


def test_a_stuck_role_makes_the_process_unhealthy(serve: Serve) -> None:
    with serve(roles=[status("initiator"), status("cleaner", stale=True)]) as server:
        code, _, body = get(server, "/healthz")
    assert code == 503
    assert json.loads(body)["problems"] == ["cleaner: no cycle began for 12 s"]


def test_an_endless_cycle_makes_the_process_unhealthy(serve: Serve) -> None:
    with serve(roles=[status("worker", stale=True, running=True)]) as server:
        code, _, body = get(server, "/healthz")
    assert code == 503
    assert json.loads(body)["problems"] == ["worker: one cycle has been running for 12 s"]


def test_a_lost_metastore_makes_the_process_unhealthy(serve: Serve) -> None:
    def ping() -> None:
        raise DatabaseUnavailable("connection refused")

    with serve(ping=ping) as server:
        code, _, body = get(server, "/healthz")
    assert code == 503
    assert json.loads(body) == {
        "status": "unhealthy",
        "roles": {},
        "problems": ["metastore: connection refused"],
    }


@pytest.mark.parametrize("path", ["/", "/metrics/x", "/favicon.ico"])
def test_other_pages_do_not_exist(serve: Serve, path: str) -> None:
    with serve() as server:
        code, _, body = get(server, path)
    assert code == 404
    assert json.loads(body)["pages"] == ["/metrics", "/healthz"]


def test_a_slow_health_check_does_not_hold_up_a_scrape(serve: Serve) -> None:
    asked, release = threading.Event(), threading.Event()

    def ping() -> None:
        asked.set()
        release.wait(60)

    with serve(ping=ping) as server:
        slow = threading.Thread(target=get, args=(server, "/healthz"))
        slow.start()
        try:
            assert asked.wait(10)
            # Gives up after 10 s, long before the health check would.
            assert get(server, "/metrics")[0] == 200
        finally:
            release.set()
            slow.join(10)


def test_a_taken_port_is_a_configuration_error_that_names_it(serve: Serve) -> None:
    with serve() as first, pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{first.port}") as caught:
        serve(port=first.port)
    assert "metrics.port" in caught.value.hint


def test_an_address_that_is_not_ours_is_a_configuration_error(serve: Serve) -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        serve(host="192.0.2.1")


def test_a_server_that_ended_gives_its_port_back(serve: Serve) -> None:
    with serve() as server:
        port = server.port
        assert get(server, "/healthz")[0] == 200
    with socket.create_server(("127.0.0.1", port), reuse_port=False):
        pass
    assert "http" not in {thread.name for thread in threading.enumerate()}
