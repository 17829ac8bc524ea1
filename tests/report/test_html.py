import json
import re
import time
from html import escape
from itertools import accumulate

import pytest

from neaptide.errors import InputError
from neaptide.report import html, render_html, write_html
from neaptide.timeline import KINDS, Life, Timeline

LINE = Timeline(
    ("embed", "matmul", "add"),
    (
        Life("weight", "parameter", 300, 0, 3, "fc"),
        Life("scores", "temporary", 100, 1, 2, "attn", "model.py:12"),
        Life("out", "output", 7, 2, 3),
    ),
)


def data_of(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def totals(chart: dict) -> list[int]:
    """Bytes at each step, as the page works them out."""
    change = [0] * (len(chart["steps"]) + 1)
    for *_, bytes, born, dies in chart["lives"]:
        change[born] += bytes
        change[dies] -= bytes
    for step, _, bytes in chart["small"]:
        change[step] += bytes
    return list(accumulate(change[:-1]))


def test_the_page_has_all_that_the_timeline_has():
    chart = data_of(render_html(LINE))["charts"][0]
    assert totals(chart) == list(LINE.bytes)
    assert [chart["strings"][step] for step in chart["steps"]] == list(LINE.steps)
    assert {"weight", "fc", "scores", "attn", "model.py:12"} <= set(chart["strings"])


def test_the_page_loads_nothing_from_anywhere(tmp_path):
    page = write_html(tmp_path / "run.html", LINE, title="net").read_text()
    assert not re.search(r"https?:|src=|@import|url\(", page)
    assert "default-src 'none'" in page
    assert "{{" not in page


def test_several_timelines_and_lines_share_a_page():
    data = data_of(render_html({"before": LINE, "after": LINE}, lines={"budget": 350}))
    assert [chart["name"] for chart in data["charts"]] == ["before", "after"]
    assert data["lines"] == [["budget", 350]]


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<!--<script>", "&amp;\u2028 {{data}} '\"\\"])
def test_no_name_can_become_markup(text):
    line = Timeline((text,), (Life(text, "input", 1, 0, 1, text, text),))
    page = render_html({text: line}, title=text, lines={text: 1})
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    chart = data_of(page)["charts"][0]
    assert chart["name"] == text
    assert f"<h1>{escape(text)}</h1>" in page
    assert chart["strings"] == [text]


def test_many_small_lives_are_summed_and_nothing_is_lost(monkeypatch):
    monkeypatch.setattr(html, "KEPT", 10)
    lives = tuple(Life(f"t{i}", KINDS[i % len(KINDS)], 1 + i, i % 50, i % 50 + 1 + i % 7) for i in range(300))
    line = Timeline(tuple(f"s{i}" for i in range(60)), lives)
    chart = data_of(render_html(line))["charts"][0]
    assert len(chart["lives"]) == 10
    assert totals(chart) == list(line.bytes)


def test_a_large_run_is_written_quickly_and_stays_small():
    steps = tuple(f"aten.mm h.{i % 48}" for i in range(10_000))
    lives = tuple(
        Life(f"t{i}", "temporary", 1000 + i, i // 2, min(10_000, i // 2 + 1 + i % 97), f"h.{i % 48}.mlp", "model.py:7")
        for i in range(20_000)
    )
    start = time.perf_counter()
    page = render_html(Timeline(steps, lives))
    assert time.perf_counter() - start < 5
    assert len(page) < 2_000_000


def test_an_empty_run_is_drawn_and_no_run_is_refused():
    assert "peak 0 B" in render_html(Timeline((), ()))
    with pytest.raises(InputError, match="no timeline"):
        render_html({})
