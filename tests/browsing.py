"""Pages in a real browser: the fixture, and what an accessibility checker says of a page."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Chromium without a window; skipped where it is not installed."""
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed; see `make setup`")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    running = webdriver.Chrome(options=options, service=service)
    yield running
    running.quit()


def barriers(browser, page: Path, width: int, dark: bool = False) -> list[tuple[str, str]]:
    """What axe finds at a page that keeps readers out, and whether it is wider than the screen."""
    axe = Path(pytest.importorskip("axe_core_python").__file__).parent / "axe.min.js"
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.get(page.as_uri())
    browser.execute_script(axe.read_text(encoding="utf-8"))
    found = browser.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "axe.run(document, {resultTypes: ['violations'], selectors: false})"
        ".then((r) => done(r.violations))"
    )
    seen = browser.execute_script("return document.documentElement.scrollWidth")
    wide = [("wider than the screen", f"{seen} pixels")] if seen > width else []
    grave = [v for v in found if v["impact"] in ("serious", "critical")]
    return wide + [(v["id"], v["nodes"][0]["html"][:200]) for v in grave]
