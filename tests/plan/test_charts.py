"""Charts: where things stand, and that any name makes a well-formed picture."""

from xml.etree import ElementTree

import pytest

from jaxinfer.plan.charts import Bar, ChartLine, Scale, bar_chart, line_chart

_SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<b>\"&'"


def _parts(picture: str, name: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(picture).iter(f"{_SVG}{name}"))


def _texts(picture: str) -> list[str]:
    return [text.text or "" for text in _parts(picture, "text")]


def _dots(picture: str) -> list[tuple[float, float]]:
    return [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in _parts(picture, "circle")]


def test_a_logarithmic_axis_has_equal_steps_for_equal_factors() -> None:
    points = ((1.0, 10.0), (2.0, 100.0), (4.0, 1000.0))
    chart = line_chart("t", Scale("x", log=True), Scale("y", log=True), [ChartLine("a", points, ("", "", ""))])
    first, second, third = _dots(chart)
    assert second[0] - first[0] == pytest.approx(third[0] - second[0], abs=0.2)
    assert first[1] - second[1] == pytest.approx(second[1] - third[1], abs=0.2)
    assert second[0] > first[0]
    assert second[1] < first[1]  # up is less


def test_an_even_axis_begins_at_nothing() -> None:
    chart = line_chart("t", Scale("x"), Scale("y"), [ChartLine("a", ((2.0, 50.0), (4.0, 100.0)), ("", ""))])
    assert {"0", "1", "2", "3", "4", "50", "100"} <= set(_texts(chart))
    (x, y), (other_x, other_y) = _dots(chart)
    left, bottom = 2 * x - other_x, 2 * y - other_y
    lines = _parts(chart, "line")
    assert min(float(line.attrib["x1"]) for line in lines) == pytest.approx(left, abs=0.2)
    assert max(float(line.attrib["y1"]) for line in lines) == pytest.approx(bottom, abs=0.2)


def test_ticks_that_are_asked_for() -> None:
    series = [ChartLine("a", ((1.0, 1.0), (64.0, 1.0)), ("", ""))]
    texts = _texts(line_chart("t", Scale("x", log=True, ticks=(1, 2, 64, 128)), Scale("y"), series))
    assert {"1", "2", "64"} <= set(texts)
    assert "128" not in texts
    assert "5" not in texts


@pytest.mark.parametrize(("low", "high"), [(6.1, 6.9), (3.0, 4.9), (1.0, 900.0), (0.02, 40_000.0)])
def test_a_logarithmic_axis_is_marked_at_several_places(low: float, high: float) -> None:
    chart = line_chart("t", Scale("x", log=True), Scale("y"), [ChartLine("a", ((low, 1.0), (high, 1.0)), ("", ""))])
    upright = [line for line in _parts(chart, "line") if line.attrib["x1"] == line.attrib["x2"]]
    assert 3 <= len(upright) <= 12


def test_what_a_logarithmic_axis_has_no_place_for_is_told() -> None:
    with pytest.raises(ValueError, match=r"x: 0\.0 has no place on a logarithmic axis"):
        line_chart("t", Scale("x", log=True), Scale("y"), [ChartLine("a", ((0.0, 1.0),), ("",))])


def test_many_series_are_told_apart_and_all_named() -> None:
    chart = line_chart("t", Scale("x"), Scale("y"), [ChartLine(f"s{i}", ((i, i),), ("",)) for i in range(24)])
    lines = _parts(chart, "polyline")
    assert len({(line.attrib["stroke"], line.attrib["stroke-dasharray"]) for line in lines}) == 24
    height = float(ElementTree.fromstring(chart).attrib["viewBox"].split()[3])
    assert all(float(text.attrib["y"]) <= height for text in _parts(chart, "text"))


def test_long_names_keep_their_ends() -> None:
    names = [f"a-very-long-name-of-a-mesh-{end}" for end in "xy"]
    texts = _texts(bar_chart("t", [Bar(name, (("a", 1.0),)) for name in names], str))
    assert [text[-2:] for text in texts if text.startswith("a-very")] == ["-x", "-y"]


def test_parts_of_a_bar_follow_one_another_and_are_as_long_as_they_are_large() -> None:
    chart = bar_chart("t", [Bar("one", (("a", 1.0), ("b", 3.0)), 8.0), Bar("two", (("b", 2.0),))], "{:.1f}".format)
    _, first, second, other, *_ = _parts(chart, "rect")  # behind them lies the paper
    widths = [float(part.attrib["width"]) for part in (first, second, other)]
    assert widths[1] == pytest.approx(3 * widths[0], abs=0.4)
    assert widths[2] == pytest.approx(2 * widths[0], abs=0.4)
    assert float(second.attrib["x"]) == pytest.approx(float(first.attrib["x"]) + widths[0], abs=0.2)
    assert second.attrib["fill"] == other.attrib["fill"] != first.attrib["fill"]
    (limit,) = _parts(chart, "line")
    assert float(limit.attrib["x1"]) == pytest.approx(float(first.attrib["x"]) + 8 * widths[0], abs=0.8)
    assert {"4.0", "2.0"} <= set(_texts(chart))


def test_names_are_text() -> None:
    series = [ChartLine(HOSTILE, ((1.0, 1.0),), (HOSTILE,)), ChartLine("none", (), ())]
    chart = line_chart(HOSTILE, Scale(HOSTILE), Scale(HOSTILE), series, HOSTILE)
    assert _texts(chart).count(HOSTILE) == 5
    assert "none" not in _texts(chart)
    assert HOSTILE in _texts(bar_chart(HOSTILE, [Bar(HOSTILE, ((HOSTILE, 1.0),))], str))


def test_nothing_to_show_is_a_picture_too() -> None:
    assert "t" in _texts(line_chart("t", Scale("x", log=True), Scale("y", log=True), []))
    assert _texts(bar_chart("t", [], str)) == ["t"]
