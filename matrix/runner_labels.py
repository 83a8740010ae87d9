"""Which runners a job may run on, as a workflow's `runs-on` takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RunsOn:
    """`labels` that a runner must all have, and the `group` that it is in; neither names no runner at all."""

    labels: tuple[str, ...] = ()
    group: str | None = None

    def __bool__(self) -> bool:
        return bool(self.labels or self.group)

    @property
    def value(self) -> str | list[str] | dict[str, Any]:
        """A label, a list of labels or a mapping with a group: each of them is what `runs-on` may be."""
        if self.group is not None:
            return {"group": self.group, **({"labels": list(self.labels)} if self.labels else {})}
        return self.labels[0] if len(self.labels) == 1 else list(self.labels)
