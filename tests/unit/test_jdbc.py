from __future__ import annotations

import pytest
import sqlalchemy as sa

from compactor.errors import ConfigError
from compactor.jdbc import sqlalchemy_url


def url_of(jdbc: str) -> str:
    return sqlalchemy_url(jdbc, user="hive", password="pw")  # noqa: S106


@pytest.mark.parametrize(
    ("jdbc", "expected"),
    [
        ("jdbc:postgresql://db/hms", "postgresql://hive:pw@db:5432/hms"),
        ("jdbc:postgresql://db:5433/hms", "postgresql://hive:pw@db:5433/hms"),
        ("jdbc:postgresql://[::1]:5433/hms", "postgresql://hive:pw@[::1]:5433/hms"),
        ("jdbc:postgresql:hms", "postgresql://hive:pw@localhost:5432/hms"),
        ("jdbc:postgresql:///hms", "postgresql://hive:pw@localhost:5432/hms"),
        ("jdbc:mysql://db/hms", "mysql://hive:pw@db:3306/hms"),
        ("jdbc:mariadb://db:3307/hms", "mysql://hive:pw@db:3307/hms"),
        ("jdbc:mysql://db/hms?createDatabaseIfNotExist=true&useUnicode=true", "mysql://hive:pw@db:3306/hms"),
        ("jdbc:postgresql://db/hms?reWriteBatchedInserts=true", "postgresql://hive:pw@db:5432/hms"),
        ("jdbc:postgresql://db/my%20hms", "postgresql://hive:pw@db:5432/my hms"),
    ],
)
def test_host_port_and_database_are_kept(jdbc: str, expected: str) -> None:
    assert url_of(jdbc) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("sslmode=verify-ca&sslrootcert=/ca.pem", {"sslmode": "verify-ca", "sslrootcert": "/ca.pem"}),
        ("ssl=true", {"sslmode": "verify-full"}),
        ("ssl=true&sslmode=require", {"sslmode": "require"}),
        ("ssl=false", {}),
        ("currentSchema=hive&ApplicationName=x", {"options": "-c search_path=hive", "application_name": "x"}),
        ("targetServerType=primary", {"target_session_attrs": "read-write"}),
    ],
)
def test_what_protects_or_directs_a_connection_to_postgresql_is_kept(query: str, expected: dict[str, str]) -> None:
    assert dict(sa.make_url(url_of(f"jdbc:postgresql://db/hms?{query}")).query) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("useSSL=false", {}),
        ("useSSL=true", {"ssl_check_hostname": "false"}),
        ("sslMode=REQUIRED", {"ssl_check_hostname": "false"}),
        ("sslMode=trust", {"ssl_check_hostname": "false"}),
        ("sslMode=verify-full&serverSslCert=/ca.pem", {"ssl_ca": "/ca.pem", "ssl_check_hostname": "true"}),
        ("sslMode=VERIFY_CA&serverSslCert=/ca.pem", {"ssl_ca": "/ca.pem", "ssl_check_hostname": "false"}),
    ],
)
def test_what_protects_a_connection_to_mysql_is_kept(query: str, expected: dict[str, str]) -> None:
    assert dict(sa.make_url(url_of(f"jdbc:mysql://db/hms?{query}")).query) == expected


def test_several_hosts_of_postgresql_are_kept() -> None:
    url = sa.make_url(url_of("jdbc:postgresql://a,b:5433/hms"))
    assert url.query["host"] == ("a:5432", "b:5433")


def test_user_and_password_may_stand_in_the_url() -> None:
    found = sqlalchemy_url("jdbc:mysql://db/hms?user=u&password=p%26q", user="", password="")
    assert found == "mysql://u:p%26q@db:3306/hms"


@pytest.mark.parametrize(
    "jdbc",
    [
        "jdbc:derby:;databaseName=hms;secret",
        "jdbc:oracle:thin:@db:1521:hms",
        "jdbc:sqlserver://db;databaseName=hms",
        "jdbc:postgresql://db/",
        "jdbc:postgresql://db/?password=secret",
        "jdbc:mysql://a,b/hms?password=secret",
        "jdbc:mysql://u:secret@db/hms",
        "jdbc:mysql://(host=db,port=1)/hms",
        "jdbc:mysql://db/hms?sslMode=VERIFY_CA&password=secret",
        "jdbc:mysql://db/hms?sslMode=VERIFY_IDENTITY&serverSslCert=/ca.pem&trustStore=/ca.jks",
        "jdbc:mysql://db/hms?useSSL=true&verifyServerCertificate=true",
        "jdbc:mysql://db/hms?sslMode=SOMETHING_NEW",
        "jdbc:postgresql://db/hms?sslkey=/key.pk8&password=secret",
        "not even that",
    ],
)
def test_what_cannot_be_carried_over_is_an_error_without_secrets(jdbc: str) -> None:
    with pytest.raises(ConfigError) as caught:
        url_of(jdbc)
    assert "database_url" in caught.value.hint
    if "password" in jdbc or "@" in jdbc:
        assert "secret" not in caught.value.message
