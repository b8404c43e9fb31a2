"""scripts/check_words.py finds phrases in what people read, and leaves code alone."""

from pathlib import Path

from scripts.check_words import errors_in


def found(name: str, source: str) -> list[tuple[int, str]]:
    return [(line, message.partition(":")[0]) for line, message in errors_in(Path(name), source)]


def test_docstrings_comments_and_texts_of_errors_are_checked() -> None:
    source = '"""Wait\n\nso many seconds."""\nnumber = 1  # it goes on\nraise ValueError(f"{number} is wanted")\n'

    assert found("module.py", source) == [(3, "'so many'"), (4, "'goes on'"), (5, "'is wanted'")]


def test_names_and_code_are_not() -> None:
    assert found("module.py", 'begun = wanted = "anew"\n# the field `begun`\n') == []
    assert found("page.md", "```\nit goes on\n```\n`anew`\n") == []


def test_prose_of_pages_is_checked() -> None:
    assert found("page.md", "A message\ncomes again.\n") == [(2, "'comes again'")]
