"""Attacks on a run, on its owner's machine and images: what could others learn about them?

    from fedssl.analysis.audit import audit

    output = audit("runs/demo", images=8)
    output.results["attacks"], output.png

The results are figures next to those of guessing, and a picture for the owner only. A failed attack
is no proof of privacy.
"""

from fedssl.analysis.audit.audit import ATTACKS, AuditOutput, audit
from fedssl.analysis.audit.material import AuditSettings
from fedssl.analysis.audit.result import AttackResult

__all__ = ["ATTACKS", "AttackResult", "AuditOutput", "AuditSettings", "audit"]
