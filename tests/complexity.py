"""`python tests/complexity.py`: no function of cyclomatic complexity above 15, by radon.

Those of `complexity.json` were more complex when the limit came; none may grow, and none may join.
`python tests/complexity.py --write` takes out those that are gone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from radon.complexity import cc_visit
from radon.visitors import Class

LIMIT = 15
SOURCE = Path(__file__).parents[1] / "src" / "paramsym"
KNOWN = Path(__file__).with_suffix(".json")


def complex_functions() -> dict[str, int]:
    """Functions above the limit, by module and name; the worst of those that share a name."""
    found: dict[str, int] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        module = path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".")
        for block in cc_visit(path.read_text(encoding="utf-8")):
            if not isinstance(block, Class) and block.complexity > LIMIT:
                name = f"{module}.{block.fullname}"
                found[name] = max(block.complexity, found.get(name, 0))
    return found


def main() -> int:
    found = complex_functions()
    known = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    if "--write" in sys.argv and known:
        known = {name: min(n, found[name]) for name, n in known.items() if name in found}
        KNOWN.write_text(json.dumps(known, indent=1) + "\n")
    worse = {name: n for name, n in found.items() if n > known.get(name, LIMIT)}
    for name, n in worse.items():
        print(f"{name}: cyclomatic complexity {n}, at most {known.get(name, LIMIT)} was expected")
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main())
