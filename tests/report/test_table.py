import pytest
from rich.console import Console

from neaptide.report import format_bytes, tabulate
from neaptide.report.table import LABELS
from neaptide.timeline import KINDS, Life, Timeline

LINE = Timeline(
    ("embed", "matmul"),
    (
        Life("weight", "parameter", 3 << 20, 0, 2, "fc"),
        Life("scores[0]", "temporary", 1 << 20, 1, 2, "attn", "net/model.py:12"),
    ),
)


def printed(line: Timeline, **options) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as caught:
        console.print(tabulate(line, **options))
    return caught.get()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        ((1 << 20) - 1, "1 MiB"),
        (99_999_999, "95.4 MiB"),
        (8 << 30, "8 GiB"),
        (3 << 50, "3072 TiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_bytes_read_as_people_say_them(count, text):
    assert format_bytes(count) == text


def test_the_table_names_the_peak_its_parts_and_who_holds_it():
    text = printed(LINE, title="net")
    assert "net: peak 4 MiB at step 2 of 2, matmul" in text
    assert "75.0 %" in text
    for word in ("parameters", "temporaries", "weight", "scores[0]", "attn", "net/model.py:12"):
        assert word in text
    assert "gradients" not in text


def test_beyond_the_top_the_rest_is_summed_up():
    many = Timeline(("a",), tuple(Life(f"t{i}", "temporary", 1024, 0, 1) for i in range(30)))
    text = printed(many, top=10)
    assert "and 20 more" in text
    assert "20 KiB" in text
    assert "t10" not in text


def test_an_empty_run_prints():
    assert "peak 0 B" in printed(Timeline((), ()))


def test_every_kind_has_a_label():
    assert set(LABELS) == set(KINDS)
