"""`fedssl doctor`: check the installation."""

from __future__ import annotations

import json

from fedssl.cli.options import AsJson


def doctor(as_json: AsJson = False) -> None:
    """Print installed packages, missing extras, devices and problems of the installation."""
    from fedssl.cli.doctor import examine, print_report

    report = examine()
    if as_json:
        print(json.dumps(report))
    else:
        print_report(report)
