"""`python tests/complexity.py`: no function of cyclomatic complexity above 15, by radon."""

from __future__ import annotations

import sys
from pathlib import Path

from radon.complexity import cc_visit
from radon.visitors import Class

LIMIT = 15
SOURCE = Path(__file__).parents[1] / "src" / "paramsym"


def main() -> int:
    """1 if a function is too complex, each of which is printed."""
    found = [
        (path.relative_to(SOURCE), block)
        for path in sorted(SOURCE.rglob("*.py"))
        for block in cc_visit(path.read_text(encoding="utf-8"))
        if not isinstance(block, Class) and block.complexity > LIMIT
    ]
    for path, block in found:
        print(
            f"{path}:{block.lineno}: {block.fullname} has cyclomatic complexity "
            f"{block.complexity}, at most {LIMIT} was expected"
        )
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
