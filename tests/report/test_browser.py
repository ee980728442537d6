"""The page in a real browser: wide, narrow and dark."""

from pathlib import Path

import pytest

from tests.browsing import barriers

WIDE, NARROW, NARROWEST = 1280, 360, 320
CASES = [
    (name, width, dark)
    for name in ("small", "hostile", "deep")
    for width, dark in ((WIDE, False), (WIDE, True), (NARROW, False), (NARROWEST, True))
]

# Every text that is seen, with its colour and the colour behind it.
CONTRASTS = """
const luminance = (c) => {
  const [r, g, b] = c.map((v) => {
    v /= 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const parse = (text) => (text.match(/[0-9.]+/g) || []).map(Number);
const behind = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c.slice(0, 3);
  }
  return [255, 255, 255];
};
const worst = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, element = node.parentElement;
  if (!node.textContent.trim() || element.closest("title, style, script")) continue;
  const style = getComputedStyle(element);
  const colour = parse(element.closest("svg") ? style.fill : style.color).slice(0, 3);
  const a = luminance(colour), b = luminance(behind(element));
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  worst.push([ratio, node.textContent.trim().slice(0, 40)]);
}
worst.sort((x, y) => x[0] - y[0]);
return worst.slice(0, 3);
"""


@pytest.fixture(params=CASES, ids=lambda c: f"{c[0]}-{c[1]}{'-dark' if c[2] else ''}")
def page(request, browser, pages: dict[str, Path]):
    """One page, opened with one width and colour scheme, all details unfolded."""
    name, width, dark = request.param
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.get_log("browser")
    browser.get(pages[name].as_uri())
    browser.execute_script("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    return browser, name, width, dark


def test_it_is_sound_and_readable(page):
    """One test for all that is looked at, since opening a page takes longest."""
    browser, name, width, dark = page
    run = browser.execute_script

    assert run("return document.documentElement.scrollWidth") <= width
    assert run("return document.documentElement.clientWidth") >= width - 20
    for table in run(
        "return [...document.querySelectorAll('table, svg.picture, svg.plot')].map("
        "(t) => [t.getBoundingClientRect().width, t.classList.contains('rows'),"
        " getComputedStyle(t.closest('.scroll')).overflowX])"
    ):
        is_cards = table[1] and width <= NARROW
        assert table[0] > 100 and table[2] == ("visible" if is_cards else "auto")

    assert browser.get_log("browser") == []
    assert run("return performance.getEntriesByType('resource').length") == 0
    assert run("return [...document.scripts].filter((s) => s.src).length") == 0

    background = run("return getComputedStyle(document.body).backgroundColor")
    channels = [int(v) for v in background[4:-1].split(",")]
    assert (max(channels) < 60) == dark
    for ratio, text in run(CONTRASTS):
        assert ratio >= 4.5, f"{text!r} has a contrast of {ratio:.2f} only"

    sections = run("return [...document.querySelectorAll('section')].map((s) => s.id)")
    expected = {"summary", "spaces", "network", "proof", "signature"}
    expected |= {"audit"} if name == "small" else set()
    expected |= {"shifts"} if name == "deep" else set()
    assert expected <= set(sections)
    for link in run("return [...document.querySelectorAll('nav a')].map((a) => a.hash.slice(1))"):
        assert link in sections
    heights = run("return [...document.querySelectorAll('section')].map((s) => s.offsetHeight)")
    assert min(heights) > 40


def test_narrow_cards_and_headings_stay_inside(browser, pages):
    size = {"width": NARROWEST, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(pages["hostile"].as_uri())
    outside = browser.execute_script(
        "return [...document.querySelectorAll('h1, h2, p, dd, dt, li, .cards > div')]"
        ".filter((e) => !e.closest('.scroll') && e.getBoundingClientRect().right >"
        " document.documentElement.clientWidth + 1).map((e) => e.textContent.slice(0, 40))"
    )
    assert outside == []


def test_the_tables_say_what_was_found(browser, pages, small):
    browser.get(pages["small"].as_uri())
    rows = browser.execute_script(
        "return [...document.querySelectorAll('#spaces tbody tr')].map("
        "(r) => [...r.children].map((c) => c.textContent.trim()))"
    )
    names = [space.name for space in small.symmetry.spaces.values()]
    assert [row[0] for row in rows] == names
    assert all(row[4] for row in rows)
    cards = browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('.cards > div')].map("
        "(d) => [d.querySelector('dt').textContent, d.querySelector('dd').textContent]))"
    )
    assert cards["Parameters"] == "80" and cards["Unexplained"] == "0"


def test_names_are_text_and_never_markup(browser, pages):
    browser.get(pages["hostile"].as_uri())
    assert "<b>bold</b>" in browser.find_element("css selector", "h1").text
    assert browser.execute_script("return document.querySelectorAll('h1 b').length") == 0
    assert browser.execute_script("return document.scripts.length") == 1
    text = browser.execute_script("return document.body.textContent")
    assert "<script>alert(1)</script>.weight" in text and "a&b\"c'd" in text


def test_rows_are_cards_on_a_telephone_and_say_why(browser, pages):
    size = {"width": 380, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(pages["deep"].as_uri())
    boxes = browser.execute_script(
        "return [...document.querySelectorAll('#spaces .why, #spaces .meaning')].map("
        "(e) => [e.textContent, e.getBoundingClientRect().left, e.getBoundingClientRect().right])"
    )
    assert len(boxes) > 2
    assert all(text and left >= 0 and right <= 380 for text, left, right in boxes)


def test_the_filter_leaves_rows_that_match_and_a_button_has_the_command(browser, pages):
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.get(pages["small"].as_uri())
    buttons = browser.find_elements("css selector", "#spaces button.copy")
    rows = browser.find_elements("css selector", "#spaces tr[data-command]")
    assert len(buttons) == len(rows) > 0
    command = rows[0].get_attribute("data-command")
    assert command.startswith("paramsym transform tests.models:Small moved --only ")
    many = browser.execute_script("return document.querySelectorAll('#spaces [data-space]').length")
    fields = browser.find_elements("css selector", "#tools input")
    assert bool(fields) == (many > 5)


def test_a_row_lights_its_lane(browser, pages):
    browser.get(pages["small"].as_uri())
    lit = browser.execute_script(
        "const row = document.querySelector('#spaces tr[data-space]');"
        "row.dispatchEvent(new MouseEvent('mouseenter'));"
        "return [...document.querySelectorAll('.lit')].map((e) => e.dataset.space)"
    )
    assert len(lit) == 2 and len(set(lit)) == 1


def test_all_is_said_without_a_script(browser, pages):
    path = pages["deep"].as_uri()
    browser.get(path)
    added = "/Copy command|Show rows with/g"
    seen = f"return document.querySelector('main').innerText.replace({added}, '')"
    with_script = browser.execute_script(seen).split()
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(path)
        without = browser.execute_script(seen).split()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert without == with_script


@pytest.mark.parametrize("name", ["small", "hostile", "deep"])
@pytest.mark.parametrize(("width", "dark"), [(1440, False), (380, True)])
def test_nothing_keeps_a_reader_out(browser, pages, name, width, dark):
    assert barriers(browser, pages[name], width, dark) == []


def test_a_page_that_keeps_readers_out_would_be_seen(browser, tmp_path: Path):
    page = tmp_path / "page.html"
    page.write_text(
        "<html><body style='width: 900px'><img src='data:,'><p style='color: #999'>pale"
    )
    found = {rule for rule, _ in barriers(browser, page, 380)}
    assert {"image-alt", "color-contrast", "html-has-lang", "wider than the screen"} <= found
