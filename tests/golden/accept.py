"""Record that the present code computes the golden bits; run by `make golden` after the tests
passed.

Figures made by any code in fedssl/core/equal_code.txt count as made by the same code. When bits
change on purpose, empty that file before this is run.
"""

from __future__ import annotations

from fedssl.core.provenance import EQUAL_CODE, PACKAGE, package_digest

digest = package_digest(PACKAGE)
known = EQUAL_CODE.read_text("utf-8").split()
if digest not in known:
    EQUAL_CODE.write_text("\n".join([*known, digest]) + "\n", "utf-8")
print(f"code {digest} computes the recorded bits")
