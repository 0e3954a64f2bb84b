"""What an object store was asked to prove, and whether it did.

What lives here: `Certificate`, as text too. The asking is in `certify.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tieredstore.driver.provider import ProbeFinding


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What a store was asked to prove, and whether it did."""

    client: str
    findings: tuple[ProbeFinding, ...]
    elapsed_ms: int

    @property
    def passed(self) -> bool:
        return all(finding.passed for finding in self.findings)

    @property
    def failures(self) -> tuple[ProbeFinding, ...]:
        return tuple(finding for finding in self.findings if not finding.passed)

    def summary(self) -> str:
        """One line: what a refusal to write says."""
        if self.passed:
            return f"{self.client}: {len(self.findings)} checks passed in {self.elapsed_ms} ms"
        named = "; ".join(f"{finding.check}: {finding.detail}" for finding in self.failures)
        return f"{self.client} is not to be trusted: {named}"

    def to_json(self) -> str:
        """For whoever keeps it."""
        rows = [[found.check, found.passed, found.detail] for found in self.findings]
        return json.dumps(
            {"client": self.client, "findings": rows, "elapsed_ms": self.elapsed_ms},
            ensure_ascii=False,
        )

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Raises ValueError for what `to_json` did not write."""
        try:
            kept = json.loads(text)
            findings = tuple(
                ProbeFinding(str(check), passed is True, str(detail))
                for check, passed, detail in kept["findings"]
            )
            return cls(
                client=str(kept["client"]), findings=findings, elapsed_ms=int(kept["elapsed_ms"])
            )
        except (TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            raise ValueError("this is no certificate") from error
