"""The progress line: on a terminal, after a while, and never in the way of the output."""

import io
import time

from rich.console import Console

from paramsym.terminal import Progress
from paramsym.terminal.progress import Rate


def shown(seconds: float, terminal: bool = True, **options) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=80)
    with Progress(delay=0.2, console=console, **options) as progress:
        progress("reading [a] file")
        time.sleep(seconds)
        progress("comparing")
        time.sleep(seconds)
    return stream.getvalue()


def test_what_takes_long_is_shown_step_by_step():
    text = shown(0.5)
    assert "reading [a] file" in text and "comparing" in text


def test_what_is_quick_shows_nothing():
    assert shown(0.0) == ""


def test_what_counts_says_how_long_the_rest_will_take():
    rate = Rate()
    assert rate("pair 1 of 8", 10.0) == "pair 1 of 8"
    assert rate("pair 3 of 8", 14.0) == "pair 3 of 8, 2 s each, 12 s left"
    assert rate("deriving", 15.0) == "deriving"
    assert rate("read 1.0 of 9.0 GB", 20.0) == "read 1.0 of 9.0 GB"
    assert rate("read 5.0 of 9.0 GB", 22.0) == "read 5.0 of 9.0 GB, 2 GB/s, 2 s left"
    assert rate("read 1.0 of 9.0 GB", 30.0) == "read 1.0 of 9.0 GB"  # another file begins
    told = "moving 2.0 of 4.0 GB, 1.00 GB/s, 2 s left"
    assert rate(told, 31.0) == told
    progress = Progress(shown=False)
    progress("pair 1 of 8")
    time.sleep(0.01)
    progress("pair 2 of 8")
    assert progress.step.endswith(" s left")


def test_nothing_is_shown_without_a_terminal_or_if_not_wanted():
    assert shown(0.4, terminal=False) == ""
    assert shown(0.4, shown=False) == ""


def test_output_stays_where_it_goes(capsys):
    console = Console(file=io.StringIO(), force_terminal=True)
    with Progress(delay=0.0, console=console) as progress:
        progress("working")
        time.sleep(0.3)
        print("the answer")
    assert capsys.readouterr().out == "the answer\n"


def test_the_steps_of_a_transform_are_told(tmp_path):
    import torch

    from paramsym.checkpoints import open_checkpoint, transform

    told: list[str] = []
    transform(
        open_checkpoint("tests.models:Small"), tmp_path / "o.safetensors",
        torch.Generator().manual_seed(0), progress=told.append,
    )  # fmt: skip
    assert [step.split()[0] for step in told] == [
        "deriving", "drawing", "moving", "writing", "reading"
    ]  # fmt: skip


def test_the_steps_of_preparing_are_told_candidate_by_candidate(tmp_path):
    from paramsym.checkpoints import Writing, open_checkpoint, write_prepared

    told: list[str] = []
    checkpoint = open_checkpoint("tests.models:Small")
    write_prepared(checkpoint, tmp_path / "o.safetensors", how=Writing(progress=told.append))
    assert told[:2] == ["reading the inputs", "deriving the symmetry"]
    for name in ("untouched", "equalised", "range", "l2", "error"):
        assert f"{name}: rounding and measuring" in told
    assert any(step.startswith("error: p = ") for step in told)


def test_the_steps_of_a_pair_are_told(tmp_path):
    from paramsym.checkpoints import Writing, open_alike, write_aligned

    told: list[str] = []
    pair = open_alike(["tests.models:Small", "tests.models:Small"])
    write_aligned(pair, tmp_path / "o.safetensors", how=Writing(progress=told.append))
    assert told[:2] == ["deriving the symmetry", "aligning"]
    assert [step.split()[0] for step in told[-3:]] == ["moving", "writing", "reading"]
