from __future__ import annotations

import html
import html.parser
import re

import pytest

from tokenflow_sgl.lab.report import ReportError, Verdict, compare, figures
from tokenflow_sgl.lab.report.conclusion import conclusions
from tokenflow_sgl.lab.report.page import page

pytestmark = pytest.mark.long


class Outline(html.parser.HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def judged(pair):
    return [figures(run) for run in pair]


@pytest.fixture(scope="module")
def both(judged):
    return page(compare(judged[0], judged[1:]))


def test_shows_one_run(judged):
    text = page(judged[0])
    assert text.count("<svg") == 8
    for title in ("Time to first token", "Unread output", "Stalls", "who waited longest"):
        assert title in text
    assert "a toy server, not a measurement" in text
    assert "INVALID" not in text


def test_shows_a_comparison(both):
    assert "tokenflow against stock" in both
    assert "▲ better" in both and "no clear difference" in both
    assert both.count("<svg") == 8


def test_needs_nothing_from_outside(both):
    outline = Outline(both)
    assert not {"script", "link", "iframe", "object", "embed"} & set(outline.tags)
    for tag, name, value in outline.attributes:
        if name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
            assert value.startswith(("#", "data:image/png;base64,")), (tag, name, value[:80])
        assert not name.startswith("on"), (tag, name)
    assert "@import" not in both
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", both))
    # Names of XML dialects are the only addresses, and nobody fetches those.
    assert set(re.findall(r"https?://[^\"' <]+", both)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_hostile_text_stays_text(synthetic, hostile):
    row = synthetic.request_row(0, [1.0, 2.0], error=hostile)
    bad = figures(
        synthetic.run_of(
            [row],
            [[1.0, 2.0]],
            name=hostile,
            source=hostile,
            started_at=hostile,
            invalid=(hostile,),
            trace={"name": hostile, hostile: {hostile: [hostile]}},
            target={hostile: hostile},
            options={hostile: hostile},
        )
    )
    for text in (page(bad), page(compare(bad, [bad]))):
        outline = Outline(text)
        assert "script" not in outline.tags
        assert not any(name.startswith("on") for _, name, _ in outline.attributes)
        shown = "".join(outline.text)
        # Name, source, start, reason, error, and six of settings: as they are, nothing computed.
        assert shown.count("alert('x')") >= 11
        assert shown.count("{{7*7}}") >= 11
        assert "\x1b" not in text


@pytest.mark.parametrize(
    ("info", "mark"),
    [({"invalid": ("The client was late.",)}, "INVALID"), ({"interrupted": True}, "INTERRUPTED")],
)
def test_runs_that_do_not_count_are_marked_everywhere(synthetic, judged, info, mark):
    bad = figures(synthetic.make_run("tokenflow", name="broken", **info))
    text = page(compare(judged[0], [bad]))
    badge = f'broken <span class="state">{mark}</span>'
    assert text.count("Do not trust these figures") == 1
    assert re.search(rf"<th>[^\n]*{re.escape(badge)}", text), "column header"
    assert re.search(rf"<h2>[^\n]*{re.escape(badge)}", text), "section heading"
    tiles = re.findall(r'<div class="tile">.*?</div>\n</div>', text, re.DOTALL)
    assert tiles and all(f'<span class="state">{mark}</span>' in tile for tile in tiles)
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert all(f"broken [{mark}]" in drawing for drawing in drawings), "every plot's legend"

    alone = page(bad)
    assert "Do not trust these figures" in alone
    assert alone.count("</h3>\n<svg") == alone.count(f"{mark}</span></h3>\n<svg")
    assert all(f"broken [{mark}]" in one for one in re.findall(r"<svg.*?</svg>", alone, re.DOTALL))


def test_other_traces_are_said_to_be_other(synthetic, judged):
    other = figures(synthetic.make_run("stock", readers=30, name="other"))
    text = page(compare(judged[0], [other], allow_different=True))
    assert "other did not serve the same trace: 60 requests against 30" in text


@pytest.mark.parametrize(
    ("times", "columns"),
    [
        ([1.0], {}),
        ([0.0, 0.0], {}),
        ([], {"error": "boom", "ended_s": 2.0, "requested_tokens": 4}),
        ([], {"sent_s": None, "requested_tokens": 4}),
    ],
)
def test_runs_with_next_to_nothing_in_them(one_request, times, columns):
    found = figures(one_request(times, **columns))
    assert page(compare(found, [found])).count("<svg") == 8


def test_an_empty_run_has_a_page(synthetic):
    assert "completed" in page(figures(synthetic.run_of([], [])))


def test_plots_fit_light_and_dark(both):
    assert "prefers-color-scheme: dark" in both
    assert "currentColor" in both
    assert "#010203" not in both


def test_the_page_does_not_grow_with_the_tokens(synthetic):
    few = page(figures(synthetic.make_run("stock", readers=20, tokens=(80, 90))))
    many = page(figures(synthetic.make_run("stock", readers=20, tokens=(2000, 2100), speed=9000)))
    assert len(many) < 1.5 * len(few) < 1_500_000


def test_too_many_runs_to_tell_apart(judged):
    with pytest.raises(ReportError, match="at most 6 runs, got 7"):
        page(compare(judged[0], [judged[1]] * 6))


def test_equal_runs_make_equal_pages(judged):
    assert page(judged[0]) == page(judged[0])


def test_figures_without_a_clear_difference_are_folded(judged):
    comparison = compare(judged[0], judged[1:])
    unclear = [each for each in comparison.others[0].changes if each.verdict is Verdict.unclear]
    text = page(comparison)
    before, _, folded = text.partition("<details>")
    folded, _, after = folded.partition("</details>")
    assert f"No clear difference in {len(unclear)} of " in folded
    assert folded.count(">no clear difference<") == len(unclear) > 0
    assert "no clear difference" not in before + after


def test_the_first_line_says_what_a_run_does(judged):
    (found,) = conclusions(compare(judged[0], judged[1:]))
    text = html.unescape(page(compare(judged[0], judged[1:])))
    assert text.index(found.text) < text.index('class="tiles"')


def test_a_phone_shows_every_column(judged):
    """390 pixels: no table of a page may need more, and no verdict may be cut.

    Looked at in Chromium; here stands what makes it so.
    """
    outline = Outline(page(compare(judged[0], judged[1:])))
    tables = [value for *where, value in outline.attributes if where == ["table", "class"]]
    css = page(judged[0]).partition("<style>")[2].partition("</style>")[0]
    phone = css.partition("@media (max-width: 45rem)")[2]
    assert {"against", "list"} < set(tables)
    assert "table.against tr { display: grid" in phone
    assert "table.against .verdict { grid-column: 4; grid-row: 1; }" in phone
    # Units are in the names there, and heads beside their figures: no row of heads is above them.
    assert "table.against td.unit" in phone and ".narrow { display: inline; }" in phone
    assert "table.list tr.heads { display: none; }" in phone
    heads = [value for tag, name, value in outline.attributes if (tag, name) == ("td", "data-head")]
    assert {"mean", "P99.9", "count", "outcome"} <= set(heads)
    # A picture is no wider than the page, or it scrolls in its own box.
    assert "minmax(0, 1fr)" in css
    assert page(judged[0]).count('<div class="scroll"><svg') == 8
