"""Settings of all tests: how fast a machine is, is no property of the code (timing is in `tests/benchmarks`)."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("machine-independent", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("machine-independent")
