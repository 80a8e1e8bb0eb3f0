"""Hypothesis profiles: `default` explores further at every run, `ci` (chosen by CI=…) repeats the same examples."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_NEVER_FLAKY = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("default", deadline=None, suppress_health_check=_NEVER_FLAKY, max_examples=60)
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
