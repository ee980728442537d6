"""kill -9 at random moments of the command, and disks that are too small: always the same bytes.

    python benchmarks/streaming_kills.py [--kills 20] [--disks 3] [--gigabytes 2.5]

The command moves a synthetic sharded Llama; it is killed after a random part of the time that a
whole run takes, goes on with --resume, and what it leaves is compared with a run that nobody
interrupted. Disks are tmpfs of random sizes (this needs the right to mount), which are then made
large enough.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import streaming


def started(source: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    """The command, in a process of its own."""
    call = [sys.executable, "-m", "paramsym", "transform", source, out, "--seed", "1"]
    call += ["--only", "*.mlp*", "--only", "*layernorm", "--no-verify", *options]
    return subprocess.Popen(
        list(map(str, call)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def left(folder: Path) -> dict[str, str]:
    """A hash of every file below a folder; the record names the place, which may differ."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        data = path.read_bytes().replace(str(folder).encode(), b"")
        found[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return found


def emptied(folder: Path) -> Path:
    """A folder with nothing in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def killed(source: Path, folder: Path, count: int) -> None:
    """Kill the command at random moments and resume it."""
    begun = time.perf_counter()
    assert not started(source, emptied(folder) / "out").wait()
    whole, expected = time.perf_counter() - begun, left(folder)
    draw, parts = random.Random(0), []
    for _ in range(count):
        emptied(folder)
        wait = draw.uniform(0.3, 1.02) * whole
        process = started(source, folder / "out")
        try:
            process.wait(wait)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        parts.append(len(list(folder.rglob("*"))))
        assert not started(source, folder / "out", "--resume").wait(), "the resumed run stopped"
        assert left(folder) == expected, f"other bytes after a kill at {wait:.2f} s"
    print(
        f"{count} kills of a run of {whole:.1f} s: {len(expected)} files with the same bytes each "
        f"time, no other file; {min(parts)} to {max(parts)} files and folders were there"
    )


def filled(source: Path, folder: Path, count: int) -> None:
    """Run onto disks that are too small, then large enough."""
    need = sum(p.stat().st_size for p in source.iterdir())
    assert not started(source, emptied(folder) / "out").wait()
    expected, draw = left(folder), random.Random(1)
    for _ in range(count):
        emptied(folder)
        small = int(need * draw.uniform(0.2, 0.9))
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={small}", "tmpfs", folder], check=True)
        try:
            process = started(source, folder / "out")
            said = process.communicate()[0]
            assert process.returncode == 2 and "room" in said, said
            size = f"remount,size={3 * need}"
            subprocess.run(["mount", "-o", size, folder], check=True)
            assert not started(source, folder / "out", "--resume").wait()
            assert left(folder) == expected
        finally:
            subprocess.run(["umount", folder], check=True)
    print(f"{count} disks that were too small: refused, and the same bytes once there was room")


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--disks", type=int, default=3)
    parser.add_argument("--gigabytes", type=float, default=2.5)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        source = streaming.written(Path(made), chosen.gigabytes)
        killed(source, Path(made) / "kills", chosen.kills)
        filled(source, Path(made) / "disks", chosen.disks)


if __name__ == "__main__":
    main()
