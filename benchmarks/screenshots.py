"""Pictures of the pages that paramsym writes, in light and dark: `make screenshots`.

Two reports, a ledger and the page of the demo are made anew, opened in Chromium without a window,
and ten views of them are written to docs/screens.
"""

from __future__ import annotations

import base64
import io
import runpy
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SCREENS = ROOT / "docs" / "screens"


class View(NamedTuple):
    """A part of a page, in a window of some width."""

    name: str
    page: str
    part: str
    width: int = 900
    most: int = 900  # pixels from its top


VIEWS = (
    View("report-summary", "llama", "body", most=460),
    View("report-spaces", "llama", "#spaces", most=760),
    View("report-network", "llama", "#network", 1100),
    View("report-layers", "llama", "#layers"),
    View("report-weight", "llama", "#weight"),
    View("report-proof", "llama", "#proof"),
    View("report-audit", "report", "#audit"),
    View("report-phone", "llama", "#spaces", 380, 900),
    View("ledger", "ledger", "main", most=760),
    View("demo", "index", "body", most=900),
)


def pages(folder: Path) -> dict[str, Path]:
    """The pages, made anew."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from paramsym.checkpoints import open_checkpoint
    from paramsym.report import examine, write_page

    demo = folder / "demo"
    shutil.copytree(ROOT / "demo", demo, ignore=shutil.ignore_patterns("output", "__pycache__"))
    sys.path.insert(0, str(demo))
    runpy.run_path(str(demo / "run.py"), run_name="__main__")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 101}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 6}
    LlamaForCausalLM(LlamaConfig(**sizes, **heads)).save_pretrained(folder / "llama")
    found = examine(open_checkpoint(str(folder / "llama")))
    write_page(found, folder / "llama.html")
    made = {name: demo / "output" / f"{name}.html" for name in ("report", "ledger", "index")}
    return {**made, "llama": folder / "llama.html"}


@contextmanager
def browser() -> Iterator:
    """Chromium without a window."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
        options.add_argument(argument)
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    running = webdriver.Chrome(options=options, service=service)
    try:
        yield running
    finally:
        running.quit()


def taken(running, page: Path, view: View, dark: bool) -> bytes:
    """One view as PNG."""
    device = {"width": view.width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    running.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
    running.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    running.get(page.as_uri())
    top, height = running.execute_script(
        "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
        "return [box.top + scrollY, box.height]",
        view.part,
    )
    clip = {"x": 0, "y": max(0, top - 16), "width": view.width,
            "height": min(height + 32, view.most), "scale": 1}  # fmt: skip
    shot = {"clip": clip, "captureBeyondViewport": True}
    return base64.b64decode(running.execute_cdp_cmd("Page.captureScreenshot", shot)["data"])


def main() -> None:
    """Write all of them."""
    from PIL import Image

    SCREENS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made, browser() as running:
        found = pages(Path(made))
        for view in VIEWS:
            for scheme in ("light", "dark"):
                png = taken(running, found[view.page], view, scheme == "dark")
                picture = Image.open(io.BytesIO(png)).convert("RGB")
                picture = picture.quantize(
                    256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
                )
                picture.save(SCREENS / f"{view.name}-{scheme}.png", optimize=True)
                print(f"docs/screens/{view.name}-{scheme}.png", flush=True)


if __name__ == "__main__":
    main()
