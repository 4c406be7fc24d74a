"""Each promise in docs/semantics.md names tests, which exist; links between documents lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEMANTICS = ROOT / "docs" / "semantics.md"
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    ROOT.glob("docs/**/*.md")
)
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", SEMANTICS.read_text())


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_named_test_exists(file: str, test: str) -> None:
    assert re.search(rf"^\s*(async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file} has no {test}"


def test_every_promise_names_a_test() -> None:
    promises = re.split(r"^## Not promised", SEMANTICS.read_text(), flags=re.MULTILINE)[0]
    sections = re.split(r"^## \d", promises, flags=re.MULTILINE)[1:]
    assert len(sections) >= 8
    paragraphs = [text for section in sections for text in section.split("\n\n")[1:] if text.strip()]
    assert [text for text in paragraphs if "::test_" not in text] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"
