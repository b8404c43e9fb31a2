from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidArgument, InvalidFilter
from penstock.values.filter import MAX_BYTES, MAX_DEPTH, Filter

RED = {"color": "red", "size": "large"}


def test_a_condition_looks_at_one_attribute(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, dict[str, str], bool]] = [
        ("attributes:color", RED, True),
        ("attributes:color", {"color": ""}, True),
        ("attributes:color", {}, False),
        ("attributes:color", {"Color": "red"}, False),
        ('attributes.color = "red"', RED, True),
        ('attributes.color = "Red"', RED, False),
        ('attributes.color = "red"', {}, False),
        ('attributes.color = ""', {"color": ""}, True),
        ('attributes.color = ""', {}, False),
        ('attributes.color != "red"', RED, False),
        ('attributes.color != "blue"', RED, True),
        ('attributes.color != "red"', {}, True),
        ('hasPrefix(attributes.color, "re")', RED, True),
        ('hasPrefix(attributes.color, "red")', RED, True),
        ('hasPrefix(attributes.color, "redder")', RED, False),
        ('hasPrefix(attributes.color, "ed")', RED, False),
        ('hasPrefix(attributes.color, "")', RED, True),
        ('hasPrefix(attributes.color, "")', {}, False),
    ]
    for text, attributes, wanted in rows:
        with subtests.test(text=text, attributes=attributes):
            assert Filter.parse(text).matches(attributes) is wanted


def test_conditions_combine(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, set[str]]] = [
        ("attributes:a AND attributes:b", {"ab", "abc"}),
        ("attributes:a AND attributes:b AND attributes:c", {"abc"}),
        ("attributes:a OR attributes:b", {"a", "b", "ab", "ac", "bc", "abc"}),
        ("attributes:a OR attributes:b OR attributes:c", {"a", "b", "c", "ab", "ac", "bc", "abc"}),
        ("NOT attributes:a", {"", "b", "c", "bc"}),
        ("-attributes:a", {"", "b", "c", "bc"}),
        ("- attributes:a", {"", "b", "c", "bc"}),
        ("NOT NOT attributes:a", {"a", "ab", "ac", "abc"}),
        ("--attributes:a", {"a", "ab", "ac", "abc"}),
        ("NOT -NOT attributes:a", {"", "b", "c", "bc"}),
        ("NOT attributes:a AND attributes:b", {"b", "bc"}),
        ("attributes:a AND NOT attributes:b", {"a", "ac"}),
        ("NOT (attributes:a AND attributes:b)", {"", "a", "b", "c", "ac", "bc"}),
        ("-(attributes:a OR attributes:b)", {"", "c"}),
        ("(attributes:a AND attributes:b) OR attributes:c", {"c", "ab", "ac", "bc", "abc"}),
        ("attributes:a AND (attributes:b OR attributes:c)", {"ab", "ac", "abc"}),
        ("((attributes:a))", {"a", "ab", "ac", "abc"}),
        ("NOT(attributes:a)AND(attributes:b)", {"b", "bc"}),
        ("-(-(attributes:a) AND -(attributes:b))", {"a", "b", "ab", "ac", "bc", "abc"}),
    ]
    for text, wanted_for in rows:
        with subtests.test(text=text, wanted_for=wanted_for):
            parsed = Filter.parse(text)
            everything = ("", "a", "b", "c", "ab", "ac", "bc", "abc")
            assert {keys for keys in everything if parsed.matches(dict.fromkeys(keys, "x"))} == wanted_for


def test_a_key_is_bare_or_quoted(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("attributes:a-b_9", "a-b_9"),
        ("attributes:-", "-"),
        ("attributes:-a", "-a"),
        ("attributes:1", "1"),
        ("attributes:AND", "AND"),
        ("attributes:NOT", "NOT"),
        ("attributes:attributes", "attributes"),
        ("attributes:hasPrefix", "hasPrefix"),
        ('attributes:"color"', "color"),
        ('attributes:""', ""),
        ('attributes:"iana.org/language_tag"', "iana.org/language_tag"),
        ('attributes:"ключ 鍵 🔑"', "ключ 鍵 🔑"),
        (r'attributes:"say \"hi\""', 'say "hi"'),
        (r'attributes:"C:\\new"', r"C:\new"),
        (r'attributes:"\\\""', '\\"'),
        ('attributes:"two\nlines"', "two\nlines"),
        ('attributes:"it\'s (a AND b)"', "it's (a AND b)"),
    ]
    for text, key in rows:
        with subtests.test(text=text, key=key):
            assert Filter.parse(text).matches({key: "x"})
            assert not Filter.parse(text).matches({f"{key}+": "x"})


def test_white_space_between_tokens_is_free(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        'attributes.color="red"AND-attributes:shape',
        'attributes.color="red"AND NOT attributes:shape',
        'attributes . color = "red" AND - attributes : shape',
        '\n attributes\t.\r\n"color"\n=\u00a0"red"\n AND\n-\nattributes:shape \n',
        'hasPrefix(attributes.color,"red")AND(-attributes:shape)',
        ' hasPrefix ( attributes . color , "red" ) AND ( - attributes : shape ) ',
    ]
    for text in rows:
        with subtests.test(text=text):
            assert Filter.parse(text).matches({"color": "red"})
            assert not Filter.parse(text).matches({"color": "red", "shape": "round"})
            assert not Filter.parse(text).matches({"color": "blue"})


def test_a_blank_filter_matches_everything(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["", " ", "\t\r\n", "\u00a0\u3000", " " * MAX_BYTES]
    for text in rows:
        with subtests.test(text=text):
            assert Filter.parse(text).matches({})
            assert Filter.parse(text).matches(RED)


# The mark stands before the offending token, and is taken out before the text is parsed.
MARK = "▲"


def test_a_bad_filter_is_refused_with_its_position_and_the_remedy(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, list[str]]] = [
        # Operators
        ("attributes:a ▲and attributes:b", ["found `and`", "`AND`, `OR` or the end", "write `AND` in capitals"]),
        ("attributes:a ▲Or attributes:b", ["found `Or`", "write `OR` in capitals"]),
        ("(attributes:a ▲or attributes:b)", ["found `or`", "`AND`, `OR` or `)`", "write `OR` in capitals"]),
        ("▲not attributes:a", ["found `not`", "expected a condition", "write `NOT` in capitals"]),
        ("▲!attributes:a", ["found `!`", "write `NOT`"]),
        ("attributes:a ▲&& attributes:b", ["found `&&`", "write `AND`"]),
        ("attributes:a▲|| attributes:b", ["found `||`", "write `OR`"]),
        ("attributes:a AND attributes:b ▲OR attributes:c", ["found `OR`", "expected `AND` again", "parentheses"]),
        ("attributes:a OR attributes:b ▲AND attributes:c", ["found `AND`", "expected `OR` again", "parentheses"]),
        ("NOT (attributes:a OR -attributes:b ▲AND attributes:c)", ["expected `OR` again"]),
        ("attributes:a ▲attributes:b", ["found `attributes`", "join two conditions with `AND` or `OR`"]),
        ("attributes:a ▲NOT attributes:b", ["found `NOT`", "join two conditions"]),
        ("attributes:a ▲ANDattributes:b", ["found `ANDattributes`", "expected `AND`, `OR` or the end"]),
        ("attributes:a▲, attributes:b", ["found `,`", "expected `AND`, `OR` or the end"]),
        ("▲AND attributes:a", ["found `AND`", "expected a condition", "between two conditions"]),
        ("attributes:a AND▲", ["found the end", "expected a condition"]),
        ("attributes:a OR  ▲", ["found the end", "expected a condition"]),
        ("attributes:a AND ▲OR attributes:b", ["found `OR`", "expected a condition"]),
        ("NOT▲", ["found the end", "expected a condition"]),
        # Conditions
        ('▲attribute.a = "x"', ["found `attribute`", "write `attributes`, with an s"]),
        ("attributes:a AND ▲attribute:b", ["found `attribute`", "with an s"]),
        ("▲Attributes:a", ["found `Attributes`", "lower case"]),
        ("▲attr:a", ["found `attr`", "in full"]),
        ('▲color = "red"', ["found `color`", "expected a condition", "write `attributes.color`"]),
        ('▲"color" = "red"', ['found `"color"`', "expected a condition"]),
        ("attributes▲", ["found the end", "expected `:` or `.`", "write `attributes:key`"]),
        ('attributes▲["a"]', ["found `[`", "expected `:` or `.`"]),
        ('attributes▲-a = "x"', ["found `-`", "expected `:` or `.`"]),
        ('attributes.a ▲== "x"', ["found `==`", "expected `=` or `!=`", "write a single `=`"]),
        ('attributes.a ▲<> "x"', ["found `<>`", "write `!=`"]),
        ('attributes.a ▲> "x"', ["found `>`", "expected `=` or `!=`"]),
        ("attributes.a▲", ["found the end", "expected `=` or `!=`", "write `attributes:key`"]),
        ('attributes.a▲:"x"', ["found `:`", "expected `=` or `!=`", "write `attributes:key`"]),
        ('attributes:a▲="x"', ["found `=`", 'write `attributes.key = "value"`']),
        # Keys
        ("attributes:▲", ["found the end", "expected a key"]),
        ('attributes.▲= "x"', ["found `=`", "expected a key"]),
        ('attributes.a▲.b = "x"', ["found `.`", "letters, digits", 'write `"a.b"`']),
        ("attributes:▲ключ", ["found `ключ`", 'write `"ключ"`']),
        ("attributes:na▲ïve", ["found `ïve`", 'write `"naïve"`']),
        ("attributes:a▲\u200b", [r"found '\u200b'", "letters, digits"]),
        ("attributes:▲'a'", ["found `'a'`", "expected a key", "straight double quotes"]),
        ("attributes:▲“a”", ["found `“`", "expected a key", "straight double quotes"]),
        # Strings
        ("attributes.a = ▲'red'", ["found `'red'`", "expected a string in double quotes", "straight double quotes"]),
        ("attributes.a = ▲“red”", ["found `“`", "straight double quotes"]),
        ("attributes.a = ▲red", ["found `red`", "expected a string", 'write `"red"`']),
        ("attributes.a = ▲us-east.1 AND attributes:b", ["found `us`", 'write `"us-east.1"`']),
        ("attributes.a = ▲-1", ["found `-`", 'write `"-1"`']),
        (r"attributes.a = ▲C:\x", ["found `C`", r'write `"C:\\x"`']),
        ("attributes.a = ▲", ["found the end", "expected a string"]),
        ("attributes.a = ▲)", ["found `)`", "expected a string"]),
        ('attributes.a = ▲"red', ['found `"red`', 'expected a `"` that ends the string']),
        (r'attributes.a = ▲"red\" AND attributes:b', ["that ends the string", r"a quote inside the string is written `\"`"]),
        ('attributes.a = ▲"red\\', ["that ends the string"]),
        ('attributes:▲"a', ["that ends the string"]),
        (r'attributes.a = "red▲\n"', [r"found `\n` in a string", r"expected `\"` or `\\`", r"write `\\` for a backslash"]),
        (r'attributes:"▲\u307f"', [r"found `\u` in a string"]),
        # hasPrefix
        ('▲hasprefix(attributes.a, "x")', ["found `hasprefix`", "write `hasPrefix`"]),
        ("hasPrefix▲", ["found the end", "expected `(`", "hasPrefix(attributes.key"]),
        ('hasPrefix(▲a, "x")', ["found `a`", "expected `attributes`", "hasPrefix(attributes.key"]),
        ('hasPrefix(attributes▲:a, "x")', ["found `:`", "expected `.`", "hasPrefix(attributes.key"]),
        ('hasPrefix(attributes.a ▲"x")', ['found `"x"`', "expected `,`"]),
        ("hasPrefix(attributes.a, ▲x)", ["found `x`", 'write `"x"`']),
        ('hasPrefix(attributes.a, "x"▲, "y")', ["found `,`", "expected `)`"]),
        ('hasPrefix▲(attributes.a, "x"', ["never closed"]),
        # Parentheses
        ("▲(attributes:a", ["found `(` that is never closed", "expected its `)`"]),
        ("▲(attributes:a AND (attributes:b OR attributes:c) ", ["never closed"]),
        ("(attributes:a AND ▲(attributes:b OR attributes:c", ["never closed"]),
        ("attributes:a▲)", ["found `)`", "no parenthesis is open here"]),
        ("(attributes:a)▲)", ["found `)`", "no parenthesis is open here"]),
        ("▲)", ["found `)`", "expected a condition"]),
        ("(▲)", ["found `)`", "expected a condition"]),
        ("(attributes:a) ▲(attributes:b)", ["found `(`", "join two conditions"]),
        ("(" * MAX_DEPTH + MARK + "(" * (200 - MAX_DEPTH), ["found `(`", f"expected at most {MAX_DEPTH} open at a time"]),
        ("-(" * MAX_DEPTH + f"-{MARK}(", ["expected at most"]),
        # Characters and bytes
        ("▲\x00", [r"found '\x00'", "expected a condition"]),
        ("attributes:a AND ▲\ud83d", [r"found '\ud83d'", "expected a character", "UTF-8"]),
        ("attributes:" + "a" * 245 + "▲a", ["found 257 bytes", "expected at most 256", "hasPrefix"]),
        ('attributes:"' + "é" * 121 + "a▲é" + '"', ["found 258 bytes", "expected at most 256"]),
        (" " * 256 + "▲ ", ["found 257 bytes"]),
    ]
    for marked, parts in rows:
        with subtests.test(marked=marked, parts=parts):
            position = marked.index(MARK)
            text = marked.replace(MARK, "")
            with pytest.raises(InvalidFilter) as refused:
                Filter.parse(text)
            assert (refused.value.text, refused.value.position) == (text, position), refused.value.problem
            for part in [*parts, "found ", "expected "]:
                assert part in refused.value.problem


def test_a_filter_that_is_no_string_is_an_invalid_argument(subtests: pytest.Subtests) -> None:
    rows: list[object] = [None, 1, b"attributes:a", ["attributes:a"], {}]
    for value in rows:
        with subtests.test(value=value):
            with pytest.raises(InvalidArgument, match=re.escape(f"filter is {value!r}, expected a string")) as refused:
                Filter.parse(value)  # type: ignore[arg-type]
            assert type(refused.value) is InvalidArgument


def test_a_filter_of_exactly_the_greatest_size_parses() -> None:
    key = "é" * ((MAX_BYTES - len('attributes:""')) // 2)
    text = f'attributes:"{key}" '
    assert len(text.encode()) == MAX_BYTES
    assert Filter.parse(text).matches({key: "x"})


def test_parentheses_nest_to_the_greatest_depth_and_may_repeat_beyond_it_side_by_side() -> None:
    assert Filter.parse("(" * MAX_DEPTH + "attributes:a" + ")" * MAX_DEPTH).matches({"a": "x"})
    assert Filter.parse("-(" * MAX_DEPTH + "attributes:a" + ")" * MAX_DEPTH).matches({"a": "x"}) is (MAX_DEPTH % 2 == 0)
    assert Filter.parse(" OR ".join(["(attributes:a)"] * 14)).matches({"a": "x"})


def test_a_row_of_negations_is_as_long_as_the_text_may_be() -> None:
    assert Filter.parse("-" * 244 + "attributes:a").matches({"a": "x"})
    assert not Filter.parse("-" * 243 + "attributes:a").matches({"a": "x"})


def test_any_mapping_can_be_matched() -> None:
    assert Filter.parse('attributes.color = "red" AND attributes:size').matches(MappingProxyType(RED))


def test_filters_are_values_of_their_text() -> None:
    one, same, other = Filter.parse("attributes:a"), Filter.parse("attributes:a"), Filter.parse("attributes: a")
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != cast(object, "attributes:a")
    assert {one, same, other} == {one, other}
    assert one.text == "attributes:a"
    assert repr(one) == "Filter(text='attributes:a')"


def test_a_filter_cannot_be_changed() -> None:
    parsed = Filter.parse("attributes:a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        parsed.text = "attributes:b"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del parsed.text


def test_a_filter_survives_pickle(subtests: pytest.Subtests) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with subtests.test(protocol=protocol):
            parsed = Filter.parse('attributes.color = "red"')
            again = pickle.loads(pickle.dumps(parsed, protocol))
            assert again == parsed
            assert again.matches(RED)
            assert not again.matches({})


def test_a_filter_survives_copying() -> None:
    parsed = Filter.parse('attributes.color = "red"')
    assert copy.copy(parsed) == copy.deepcopy(parsed) == parsed
    assert copy.deepcopy(parsed).matches(RED)


# A second, naive reading of the language for the property below: trees that print themselves and evaluate directly.


@dataclasses.dataclass(frozen=True)
class Condition:
    kind: str
    key: str
    value: str
    bare: bool

    def tokens(self) -> list[str]:
        key = self.key if self.bare and re.fullmatch("[A-Za-z0-9_-]+", self.key) else quoted(self.key)
        if self.kind == "has":
            return ["attributes", ":", key]
        if self.kind == "prefix":
            return ["hasPrefix", "(", "attributes", ".", key, ",", quoted(self.value), ")"]
        return ["attributes", ".", key, self.kind, quoted(self.value)]

    def holds(self, attributes: Mapping[str, str]) -> bool:
        if self.key not in attributes:
            return self.kind == "!="
        actual = attributes[self.key]
        outcomes = {"has": True, "=": actual == self.value, "!=": actual != self.value}
        return actual[: len(self.value)] == self.value if self.kind == "prefix" else outcomes[self.kind]


@dataclasses.dataclass(frozen=True)
class Negation:
    sign: str
    tree: Tree

    def tokens(self) -> list[str]:
        return [self.sign, *operand(self.tree)]

    def holds(self, attributes: Mapping[str, str]) -> bool:
        return not self.tree.holds(attributes)


@dataclasses.dataclass(frozen=True)
class Junction:
    joint: str
    trees: list[Tree]

    def tokens(self) -> list[str]:
        first, *others = map(operand, self.trees)
        return first + [token for other in others for token in (self.joint, *other)]

    def holds(self, attributes: Mapping[str, str]) -> bool:
        outcomes = [tree.holds(attributes) for tree in self.trees]
        return all(outcomes) if self.joint == "AND" else any(outcomes)


Tree = Condition | Negation | Junction


def operand(tree: Tree) -> list[str]:
    return ["(", *tree.tokens(), ")"] if isinstance(tree, Junction) else tree.tokens()


def quoted(text: str) -> str:
    return '"' + "".join(f"\\{character}" if character in '\\"' else character for character in text) + '"'


# Few and short, so that conditions often hold and trees fit in the greatest size.
KEYS = ["a", "b", "-", "OR", "", "é", '"\\']
VALUES = ["", "x", "xy", "y", '\\"', "鍵"]


def larger(trees: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    negations = st.builds(Negation, st.sampled_from(["NOT", "-"]), trees)
    junctions = st.builds(Junction, st.sampled_from(["AND", "OR"]), st.lists(trees, min_size=2, max_size=4))
    return negations | junctions


conditions = st.builds(
    Condition, st.sampled_from(["has", "=", "!=", "prefix"]), st.sampled_from(KEYS), st.sampled_from(VALUES), st.booleans()
)
trees: st.SearchStrategy[Tree] = st.recursive(conditions, larger, max_leaves=6)
messages = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))


@given(trees, st.sampled_from([" ", "\t", "\r\n"]), st.lists(messages, min_size=1))
def test_a_printed_tree_parses_to_a_filter_that_agrees_with_it(tree: Tree, blank: str, messages: list[dict[str, str]]) -> None:
    text = blank.join(tree.tokens())
    if len(text.encode()) > MAX_BYTES:
        with pytest.raises(InvalidFilter, match="expected at most 256"):
            Filter.parse(text)
        return
    parsed = Filter.parse(text)
    for attributes in messages:
        assert parsed.matches(attributes) is tree.holds(attributes)


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_key_and_value_can_be_written_in_quotes(key: str, value: str) -> None:
    parsed = Filter.parse(f"attributes.{quoted(key)}={quoted(value)}")
    assert parsed.matches({key: value})
    assert not parsed.matches({key: value + "+"})


# Words of the language in any order get far deeper into the parser than characters at random.
SIGNS = ["(", ")", ".", ":", ",", "-", "=", "!=", "==", '"', "'", "\\", " "]
WORDS = ["attributes", "attribute", "hasPrefix", "AND", "OR", "NOT", "and", "a", "é", '"x"']
CONDITIONS = ["attributes:a", 'attributes.a="x"', 'hasPrefix(attributes.a,"x")']
pieces = st.sampled_from([*SIGNS, *WORDS, *CONDITIONS]) | st.text(st.characters(), max_size=2)
anything = st.text(st.characters()) | st.lists(pieces).map("".join)


@given(anything)
def test_any_text_parses_or_is_refused_at_a_position_in_it(text: str) -> None:
    try:
        outcome = Filter.parse(text).matches({"a": "x"})
    except InvalidFilter as refused:
        error = refused
    else:
        assert isinstance(outcome, bool)
        return
    assert 0 <= error.position <= len(text)
    assert error.text == text
    assert re.match("found .+, expected .", error.problem, re.DOTALL)
