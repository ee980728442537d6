"""The page of the atlas, a line of it for each class, and the difference of two runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Result = dict[str, Any]
Run = dict[str, Result]

PAGE = Path(__file__).parents[1] / "docs" / "atlas.md"
BEGIN, END = "<!-- made by benchmarks/atlas.py --table: begin -->", "<!-- end -->"
_COLUMNS = (
    "class", "parameters", "seconds", "frozen", "error", "explained", "unexplained", "remarks",
)  # fmt: skip
# why a first audit counted more
REASONS = "an ε below 1e-9", "short inputs", "few words", "these weights"
_SLOWER, _NOTICED = 2.0, 1.0  # times as long as before, and seconds from which that is noticed


def is_traced(result: Result) -> bool:
    """Whether a symmetry was derived, and no operator was without a rule."""
    return "seconds" in result and not result.get("unknown")


def line(name: str, result: Result) -> str:
    """One class in one line, for the progress."""
    state = f"{result.get('parameters', '-'):>7} {result.get('seconds', '-'):>6}s"
    parts = [
        f"UNSOUND {result.get('error')}" if result.get("unsound") else "",
        f"unknown {[*result.get('unknown', ())]}" if result.get("unknown") else "",
        f"unexplained {result['unexplained']}" if result.get("unexplained") else "",
        result.get("why", "")[:150], result.get("ended", ""), result.get("audit", "")[:100],
    ]  # fmt: skip
    return f"{name:45} {state} {'; '.join(p for p in parts if p) or 'fine'}"


# -- totals -----------------------------------------------------------------------------------
def totals(run: Run) -> dict[str, Any]:
    """What is demanded of a whole run, in numbers."""
    built = {name: r for name, r in run.items() if r.get("built")}
    traced = [name for name, r in built.items() if is_traced(r)]
    audited = {name: r for name, r in built.items() if r.get("audited")}
    seconds = [r["seconds"] for r in built.values() if "seconds" in r]
    return {
        "classes": len(run),
        "built": len(built),
        "traced": len(traced),
        "audited": len(audited),
        "explained": sum(not r["unexplained"] for r in audited.values()),
        "unsound": sorted(name for name, r in built.items() if r.get("unsound")),
        "ended": sorted(name for name, r in run.items() if r.get("ended")),
        "median seconds": round(statistics.median(seconds), 3) if seconds else None,
        "most seconds": max(seconds, default=None),
    }


# -- the alarm --------------------------------------------------------------------------------
def difference(old: Run, new: Run) -> tuple[bool, list[str]]:
    """Whether something got worse from one run to another, and what changed, line by line."""
    worse, better = [], []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before is None or after is None:
            better.append(f"  {name}: {'new' if before is None else 'not measured any more'}")
            continue
        worse += [f"! {name}: {text}" for text in _worse(before, after)]
        better += [f"  {name}: no longer {text}" for text in _worse(after, before)]
    lines = [*worse, *better] or ["nothing changed"]
    return bool(worse), lines


def _worse(old: Result, new: Result) -> Iterator[str]:
    """What is worse in a result than in another one."""
    if old.get("built") and not new.get("built"):
        yield f"not built: {new.get('why', '')}"
    elif "seconds" in old and "seconds" not in new:
        yield f"not traced: {new.get('why') or new.get('ended', '')}"
    if new.get("unsound") and not old.get("unsound"):
        yield f"unsound, error {new.get('error')}, denied {[*new.get('denied', ())]}"
    if new.get("ended") and not old.get("ended"):
        yield new["ended"]
    if added := sorted({*new.get("unknown", ())} - {*old.get("unknown", ())}):
        yield f"without a rule: {', '.join(added)}"
    before, after = old.get("unexplained"), new.get("unexplained")
    if before is not None and after is not None and after > before:
        yield f"unexplained {before} → {after}"
    if before is not None and after is None:
        yield f"not audited: {new.get('audit') or new.get('ended', '')}"
    slow = max(_NOTICED, _SLOWER * old.get("seconds", float("inf")))
    if new.get("seconds", 0.0) > slow:
        yield f"slow: {old['seconds']} → {new['seconds']} s"


# -- the page ---------------------------------------------------------------------------------
def write(run: Run, page: Path = PAGE) -> None:
    """Put the totals and the table of a run between the markers of the page."""
    text = page.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END, 1)[1]
    body = "\n".join(_body(run))
    page.write_text(f"{head}{BEGIN}\n\n{body}\n\n{END}{tail}")


def _body(run: Run) -> Iterator[str]:
    found = totals(run)
    yield from ("| | |", "|---|---:|")
    for name, value in found.items():
        shown = (", ".join(value) or "none") if isinstance(value, list) else value
        yield f"| {name} | {shown} |"
    for family in dict.fromkeys(r["family"] for r in run.values()):
        own = {name: r for name, r in run.items() if r["family"] == family}
        yield from ("", f"### {family.capitalize()} {{ #{family} }}", "")
        yield f"| {' | '.join(_COLUMNS)} |"
        yield "|---|---:|---:|---:|---:|---:|---:|---|"
        for name, result in sorted(own.items(), key=lambda item: item[0].lower()):
            if result.get("built"):
                yield _row(name, result)
        if missing := sorted(name for name, r in own.items() if not r.get("built")):
            yield from ("", f"Not built: {', '.join(missing)}.")


def _row(name: str, result: Result) -> str:
    frozen = result.get("frozen")
    error = result.get("error")
    cells = [
        name, f"{result['parameters']:,}", _shown(result.get("seconds")),
        "" if frozen is None else f"{frozen:.0%}", "" if error is None else f"{error:.0e}",
        _shown(result.get("explained")), _shown(result.get("unexplained")), _remarks(result),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _shown(value: Any) -> str:
    return "" if value is None else str(value)


def _remarks(result: Result) -> str:
    found = [
        "**unsound**" if result.get("unsound") else "",
        f"no rule for {', '.join(result['unknown'])}" if result.get("unknown") else "",
        f"at {', '.join(result['where'])}" if result.get("unexplained") else "",
        *(f"{result[why]} with {why}" for why in REASONS if why in result),
        result.get("audit", "")[:90],
        result.get("why", "").split(": ", 2)[-1][:90], result.get("ended", ""),
    ]  # fmt: skip
    return "; ".join(text for text in found if text).replace("|", "\\|").replace("<", "‹")
