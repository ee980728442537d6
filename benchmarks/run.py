"""All benchmarks: `make bench`, or `python benchmarks/run.py [--json]`."""

from __future__ import annotations

import argparse
import json

import action
import derivation
import torch


def main() -> None:
    """Measure everything, print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    derived, moved = derivation.run(), action.run()
    if options.json:
        print(json.dumps({"derivation": derived, "action": moved}, indent=1))
    else:
        derivation.show(derived)
        action.show(moved)


if __name__ == "__main__":
    main()
