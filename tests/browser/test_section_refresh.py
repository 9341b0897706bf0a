"""A refreshed section becomes the fetched one, and keeps focus, typed text and scroll position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Page

from tests.support.web_service import WebService

pytestmark = pytest.mark.portal
MORPH = """async ([old, fresh, before, after]) => {
  const { morph } = await import("/portal/static/morph.js");
  const made = (html) => new DOMParser().parseFromString(html, "text/html").body.firstElementChild;
  const main = document.querySelector("main");
  main.replaceChildren(document.importNode(made(old), true));
  const section = main.firstElementChild;
  const kept = before ? Function("section", before)(section) : null;
  morph(section, made(fresh));
  return after ? Function("section", "kept", after)(section, kept) : [section.outerHTML, made(fresh).outerHTML];
}"""


@pytest.fixture(scope="module")
def page(browser: Any, shared: WebService) -> Iterator[Page]:
    """A page without a Content-Security-Policy, so that tests can run their own scripts."""
    context = browser.new_context(bypass_csp=True)
    page = context.new_page()
    page.goto(f"http://localhost:{shared.base_url.rpartition(':')[2]}/portal/sign-in")
    yield page
    context.close()


def morphed(page: Page, old: str, fresh: str, before: str = "", after: str = "") -> Any:
    return page.evaluate(MORPH, [old, fresh, before, after])


TEXTS = st.text(alphabet='ab <&"é', max_size=5)
NAMES = st.sampled_from(["p", "span", "b", "em"])
ATTRIBUTES = st.dictionaries(st.sampled_from(["class", "title", "data-x", "aria-label"]), TEXTS, max_size=2)


def escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


def element(name: str, attributes: dict[str, str], inside: list[str]) -> str:
    text = "".join(f' {key}="{escaped(value)}"' for key, value in attributes.items())
    return f"<{name}{text}>{''.join(inside)}</{name}>"


LEAVES = TEXTS.map(escaped)
TREES = st.recursive(
    LEAVES,
    lambda inside: st.builds(element, st.sampled_from(["div", "span", "b"]), ATTRIBUTES, st.lists(inside, max_size=4)),
    max_leaves=12,
)


@st.composite
def sections(draw: st.DrawFn) -> str:
    """Sections in which some children have unique ids, in any order."""
    ids = draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=5))
    named = [element(draw(st.sampled_from(["div", "b"])), {"id": one}, [draw(TREES)]) for one in ids]
    plain = draw(st.lists(TREES, max_size=4))
    return element("section", draw(ATTRIBUTES), draw(st.permutations([*named, *plain])))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(old=sections(), fresh=sections())
def test_a_section_becomes_the_fetched_one(page: Page, old: str, fresh: str) -> None:
    became, wanted = morphed(page, old, fresh)
    assert sorted_attributes(page, became) == sorted_attributes(page, wanted)


def sorted_attributes(page: Page, html: str) -> str:
    """The HTML with sorted attributes, whose order does not matter."""
    text: str = page.evaluate(
        """(html) => {
          const made = new DOMParser().parseFromString(html, "text/html").body;
          made.normalize();
          for (const one of made.querySelectorAll("*")) {
            const all = [...one.attributes].map(({ name, value }) => [name, value]).sort();
            for (const [name] of all) one.removeAttribute(name);
            for (const [name, value] of all) one.setAttribute(name, value);
          }
          return made.innerHTML;
        }""",
        html,
    )
    return text


def test_a_refresh_keeps_the_focus(page: Page) -> None:
    old = '<section><p>one</p><a id="here" href="#">there</a></section>'
    fresh = '<section><p>new</p><p>two</p><a id="here" href="#">there</a></section>'
    before = 'section.querySelector("a").focus()'
    assert morphed(page, old, fresh, before, "return document.activeElement?.id") == "here"


def test_a_refresh_keeps_typed_text_and_the_caret(page: Page) -> None:
    old = '<section><p>1</p><input value="" name="q"></section>'
    fresh = '<section><p>2</p><input value="x" name="q" class="new"></section>'
    before = (
        'const i = section.querySelector("input"); i.focus(); i.value = "hello"; i.setSelectionRange(2, 3); return i'
    )
    after = 'const i = section.querySelector("input"); return [i === kept, i.value, i.selectionStart, i.className]'
    assert morphed(page, old, fresh, before, after) == [True, "hello", 2, "new"]


def test_a_refresh_keeps_unfolded_details(page: Page) -> None:
    old = "<section><details><summary>s</summary>old</details></section>"
    fresh = "<section><details><summary>s</summary>new</details></section>"
    before = 'section.querySelector("details").open = true'
    after = 'const d = section.querySelector("details"); return [d.open, d.textContent]'
    assert morphed(page, old, fresh, before, after) == [True, "snew"]


def test_a_refresh_keeps_the_scroll_position(page: Page) -> None:
    rows = "".join(f"<p>{number}</p>" for number in range(200))
    old = f'<section><div class="scroll">{rows}</div></section>'
    fresh = f'<section><div class="scroll">{rows}<p>more</p></div></section>'
    before = 'const d = section.firstChild; d.style.height = "50px"; d.style.overflow = "auto"; d.scrollTop = 100'
    assert morphed(page, old, fresh, before, "return section.firstChild.scrollTop") == 100


def test_a_refresh_moves_rows_instead_of_replacing_them(page: Page) -> None:
    old = '<section><p id="a">a</p><p id="b">b</p></section>'
    fresh = '<section><p id="new">new</p><p id="b">b!</p><p id="a">a</p></section>'
    after = "return [[...section.children].map((one) => one.textContent), kept.isConnected, kept.textContent]"
    assert morphed(page, old, fresh, 'return section.querySelector("#b")', after) == [["new", "b!", "a"], True, "b!"]
