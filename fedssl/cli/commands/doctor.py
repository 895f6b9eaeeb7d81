"""`fedssl doctor`: check the installation."""

from __future__ import annotations

import json

from fedssl.cli.options import AsJson


def doctor(as_json: AsJson = False) -> None:
    """Check the installation: packages, optional parts, GPUs and problems."""
    from fedssl.cli.doctor import examine, print_report

    report = examine()
    if as_json:
        print(json.dumps(report))
    else:
        print_report(report)
