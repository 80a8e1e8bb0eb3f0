"""Hive's Thrift address instead of a database: where it comes from, what wins, and who can do with it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from compactor.cli import main
from compactor.config import load_settings
from compactor.settings import Settings

URIS = "thrift://one:9083,thrift://two"
DATABASE = "sqlite:////data/hms.db"


def site(folder: Path, **properties: str) -> Path:
    path = folder / "hive-site.xml"
    lines = [f"<property><name>{name}</name><value>{value}</value></property>" for name, value in properties.items()]
    path.write_text(f"<configuration>{''.join(lines)}</configuration>")
    return path


def settings(hive_site: Path, **environ: str) -> Settings:
    return load_settings(hive_site=hive_site, environ=environ)


def test_hives_own_keys_are_read(tmp_path: Path) -> None:
    path = site(
        tmp_path,
        **{
            "hive.metastore.uris": URIS,
            "hive.metastore.client.socket.timeout": "90s",
            "hive.metastore.thrift.framed.transport.enabled": "true",
            "hive.metastore.sasl.enabled": "true",
        },
    )
    found = settings(path).metastore
    assert found.uris == ("thrift://one:9083", "thrift://two")
    assert (found.timeout_s, found.framed, found.sasl) == (90.0, True, True)


def test_a_file_that_names_the_database_too_means_the_database(tmp_path: Path) -> None:
    path = site(tmp_path, **{"hive.metastore.uris": URIS, "javax.jdo.option.ConnectionURL": DATABASE})
    assert settings(path).metastore.uris == ()
    assert settings(path).database_url == DATABASE


def test_a_database_that_was_given_wins_over_the_files_address(tmp_path: Path) -> None:
    path = site(tmp_path, **{"hive.metastore.uris": URIS})
    assert settings(path, COMPACTOR_DATABASE_URL=DATABASE).metastore.uris == ()


def test_an_address_that_was_given_wins_over_what_the_file_says(tmp_path: Path) -> None:
    # Nobody has to be able to use a database that is not asked for.
    path = site(tmp_path, **{"hive.metastore.uris": URIS, "javax.jdo.option.ConnectionURL": "jdbc:oracle:thin:@//db/x"})
    found = settings(path, COMPACTOR_METASTORE_URIS="thrift://three")
    assert found.metastore.uris == ("thrift://three",)
    assert "database_url" not in found.model_fields_set


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("COMPACTOR_CONFIG", "COMPACTOR_DATABASE_URL", "COMPACTOR_METASTORE_URIS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def ends_with(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return int(end.value.code or 0)


@pytest.mark.parametrize(
    "command", [["initiator", "--once"], ["cleaner", "--once"], ["run", "--once"], ["show", "compactions"]]
)
def test_everything_but_the_worker_says_that_it_needs_the_database(
    command: list[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = site(place, **{"hive.metastore.uris": URIS})
    assert ends_with([*command, "--hive-site", str(path)]) == 2
    assert "needs the metastore's database" in capsys.readouterr().err
    assert not (place / "compactor.db").exists()


def test_a_worker_without_an_answer_ends_with_the_addresses(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    assert ends_with(["worker", "--once", "--set", f"metastore.uris=thrift://{address}"]) == 1
    assert f"no metastore answers at {address}" in capsys.readouterr().err
    assert not (place / "compactor.db").exists()


@pytest.mark.parametrize("setting", ["metastore.sasl=true", "metastore.uris=http://one"])
def test_a_worker_that_cannot_speak_to_the_metastore_says_so_at_once(setting: str, place: Path) -> None:
    del place
    assert ends_with(["worker", "--once", "--set", "metastore.uris=thrift://one", "--set", setting]) == 2
