"""Every claim of speed beside its peer, in one go: `make bench`, or `python benchmarks/run.py`.

Each claim is a ratio of two times that were taken in one run on this machine. The table goes to
docs/speed.md, and all numbers, with versions and the machine, are added to benchmarks/history.json,
from which the documentation reads what it says. About ten minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import io
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # some benchmarks import others by their package
HISTORY, PAGE = HERE / "history.json", HERE.parent / "docs" / "speed.md"
TEXT = """# How fast is it?

Every claim of speed beside its peer, both taken in one run of `make bench`, which writes this
page. A ratio below one is faster than the peer; a machine that does something else meanwhile moves
ratios by 30 %.

{date}: {cpu}, {cores} cores, one thread; {versions}.

| what | beside | ours | theirs | ratio | promised |
|---|---|---:|---:|---:|---:|
"""
END = """

Earlier runs are in `benchmarks/history.json`; tables with more columns, and how they were measured,
in `benchmarks/README.md`.
"""
PACKAGES = ("torch", "transformers", "numpy", "safetensors")


@dataclass(frozen=True)
class Claim:
    """A measured ratio, and the bound that it is held against.

    `ratio` is `ours` over `theirs`, both in seconds; `most` is the largest that is promised, or
    None where nothing is.
    """

    key: str
    what: str
    peer: str
    ours: float
    theirs: float
    most: float | None = None

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs

    @property
    def holds(self) -> bool:
        return self.most is None or self.ratio <= self.most


def deriving() -> Iterator[Claim]:
    """The symmetry of models without weights, beside the graph alone."""
    import derivation

    for row in derivation.run(["ResNet-50", "GPT-2 small", "Llama-3-8B"]):
        ours, theirs = (row[reader].get("seconds") for reader in ("paramsym", "torch.export"))
        if ours and theirs:
            name = row["name"]
            yield Claim(f"derive {name}", f"symmetry of {name}", "torch.export", ours, theirs)


def moving() -> Iterator[Claim]:
    """Weights in memory, beside a copy of them."""
    import action

    for row in action.run(3):
        yield Claim(
            f"act {row['group']}", f"`act` by {row['group']}, {row['gb']:.1f} GB", "`torch.clone`",
            row["act"], row["copy"], 1 / action.TARGET,
        )  # fmt: skip


def streaming() -> Iterator[Claim]:
    """A sharded checkpoint from files to files, beside copying them; start-up apart."""
    import streaming as files

    with tempfile.TemporaryDirectory() as made:
        source = files.written(Path(made), 2.5)
        copying = min(files.copied(source, Path(made) / "copy") for _ in range(2))
        for kind in ("permutations and scalings", "per-head bases"):
            said = files.moved(source, Path(made) / "moved", files.KINDS[kind], False)
            most = {"permutations and scalings": 2.0, "per-head bases": 4.0}[kind]
            yield Claim(
                f"transform {kind}", f"`transform` by {kind}, 2.5 GB in files",
                "copying the files", said["seconds"] - said["start"], copying, most,
            )  # fmt: skip
        said = files.compared(
            source, Path(made) / "moved", files.KINDS["permutations and scalings"]
        )
        yield Claim(
            "compare", "`compare` of a checkpoint and its moved copy in files", "reading both",
            said["seconds"], said["reading"],
        )  # fmt: skip


def training() -> Iterator[Claim]:
    """What is measured beside a training step."""
    import ledger
    import moments

    row = moments.run(3)
    yield Claim("moments", "moments of every generator", "a training step", row["spaces"],
                row["step"], moments.TARGET)  # fmt: skip
    row = ledger.overhead(3)
    yield Claim("ledger", "a ledger of conserved quantities", "a training step", row["ledger"],
                row["step"], row["target"])  # fmt: skip


def certifying() -> Iterator[Claim]:
    """That nothing is missing, beside a singular value decomposition."""
    import audit

    for row in audit.run((1048, 1920)):
        count = f"{row['parameters']:,} parameters"
        yield Claim(f"audit {row['parameters']}", f"certificate of {count}", "SVD",
                    row["seconds"], row["svd_seconds"], 1.0)  # fmt: skip
        yield Claim(f"pass {row['parameters']}", f"Jacobian of {count} at 64 inputs in one pass",
                    "64 calls", row["pass_seconds"], row["calls_seconds"], 0.5)  # fmt: skip


def layers() -> Iterator[Claim]:
    """Layers with a structure, beside dense ones."""
    import equivariant
    import waring

    with contextlib.redirect_stdout(io.StringIO()):
        ours, dense = equivariant.published(10)
    yield Claim("equivariant", "equivariant autoencoder, 784–99–784, forward and backward",
                "the dense one", ours / 1e3, dense / 1e3, 1.0)  # fmt: skip
    row = waring.timed((1, 1, 2, 3), 128, 7)
    yield Claim("polynomial", "sums of powers, forward and backward", "`nn.Linear` as large",
                row["polynomial"] / 1e3, row["dense"] / 1e3, waring.TARGET)  # fmt: skip


GROUPS: tuple[Callable[[], Iterator[Claim]], ...] = (
    deriving, moving, streaming, training, certifying, layers,
)  # fmt: skip


def machine() -> dict[str, str]:
    """What the numbers were taken on."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next(
            line.partition(":")[2].strip() for line in lines if line.startswith("model name")
        )
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {
        "cpu": cpu,
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        **versions,
    }


def page(run: dict[str, Any]) -> str:
    """The last run as a page of the documentation."""
    where = run["machine"]
    versions = ", ".join(f"{name} {where[name]}" for name in ("python", *PACKAGES))
    rows = [
        f"| {c['what']} | {c['peer']} | {c['ours']:.3g} s | {c['theirs']:.3g} s | {c['ratio']:.3g} "
        f"| {'–' if c['most'] is None else '≤ {:.3g}'.format(c['most'])} |"
        for c in run["claims"]
    ]
    head = TEXT.format(date=run["date"], cpu=where["cpu"], cores=where["cores"], versions=versions)
    return head + "\n".join(rows) + END


def main() -> None:
    """Measure, add to the history, write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=[g.__name__ for g in GROUPS])
    parser.add_argument("--json", action="store_true", help="print JSON, and write nothing")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    found = []
    for group in GROUPS:
        for claim in group() if not options.only or group.__name__ in options.only else ():
            found.append(claim)
            if not options.json:
                kept = "" if claim.most is None else f" (promised {claim.most:.3g})"
                mark = "" if claim.holds else "  MISSED"
                print(f"{claim.ratio:8.3g} of {claim.peer}{kept}: {claim.what}{mark}", flush=True)
    claims = [{**asdict(c), "ratio": c.ratio} for c in found]
    run = {"date": str(datetime.date.today()), "machine": machine(), "claims": claims}
    if options.json:
        print(json.dumps(run, indent=1))
    elif not options.only:
        history = json.loads(HISTORY.read_text(encoding="utf-8")) if HISTORY.exists() else []
        HISTORY.write_text(json.dumps([*history, run], indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(run), encoding="utf-8")


if __name__ == "__main__":
    main()
