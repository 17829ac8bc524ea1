"""The pages in a real browser: nothing is fetched, nothing fails, the pictures are drawn and say names and bytes.

Where Chromium, its driver or Selenium is absent, these are skipped, and say so: `make browser` installs them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import neaptide
from neaptide.report import write_html

selenium = pytest.importorskip("selenium", reason="Selenium is not installed: make browser")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not CHROMIUM or not DRIVER, reason="Chromium is not installed: make browser")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--window-size=1280,1600")
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage")
PAINTED = """
const pen = arguments[0].getContext("2d"), seen = new Set();
const data = pen.getImageData(0, 0, arguments[0].width, arguments[0].height).data;
for (let at = 0; at < data.length; at += 4) seen.add(data[at] << 16 | data[at + 1] << 8 | data[at + 2]);
return seen.size;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, *QUIET, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def advice() -> neaptide.Advice:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    plain = neaptide.estimate(model, torch.randn(2048, 64), optimizer=optimizer).peak
    return neaptide.advise(model, torch.randn(2048, 64), budget=int(0.8 * plain), optimizer=optimizer)


def look_at(browser: Any, path: Path) -> list[str]:
    """Open a page; what its console says."""
    browser.get(path.resolve().as_uri())
    return [entry["message"] for entry in browser.get_log("browser")]


def test_advice_is_drawn_and_tells_what_each_point_is(browser: Any, advice: neaptide.Advice, tmp_path: Path) -> None:
    assert look_at(browser, advice.write_html(tmp_path / "advice.html")) == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    points = browser.find_elements(By.CSS_SELECTOR, "svg circle")
    assert len(points) == len(advice.rows)
    assert len(browser.find_elements(By.CSS_SELECTOR, "svg line.budget")) == 1
    assert browser.find_element(By.CSS_SELECTOR, "svg polyline.front").get_attribute("points").count(",") == len(advice.front)
    told = browser.find_element(By.CSS_SELECTOR, ".told")
    assert advice.best is not None
    assert told.text.startswith(advice.best.method)
    for point, row in zip(points, advice.rows, strict=True):  # those that lie upon each other are told together
        ActionChains(browser).move_to_element(point).perform()
        (line,) = (line for line in told.text.splitlines() if line.startswith(f"{row.method}: "))
        assert "iB" in line
        assert ("over the budget" in line) is not advice.fits(row)


def test_timelines_are_drawn_and_hovering_names_who_holds_a_step(browser: Any, advice: neaptide.Advice, tmp_path: Path) -> None:
    assert advice.plain.timeline is not None
    page = write_html(tmp_path / "plain.html", advice.plain.timeline, "plain", {"budget": advice.budget or 0})
    assert look_at(browser, page) == []
    (canvas,) = browser.find_elements(By.CSS_SELECTOR, "canvas")
    assert browser.execute_script(PAINTED, canvas) > 4  # ground, lines, and the areas of several kinds
    panel = browser.find_element(By.CSS_SELECTOR, ".panel")
    at_peak = panel.text
    assert "(the peak)" in at_peak
    ActionChains(browser).move_to_element_with_offset(canvas, -int(canvas.size["width"] * 0.3), 0).perform()
    assert panel.text != at_peak
    holders = panel.find_elements(By.CSS_SELECTOR, ".holders tbody tr")
    assert len(holders) > 1
    assert "iB" in holders[0].text
    assert "weight" in panel.text
