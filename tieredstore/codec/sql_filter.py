"""A consumer's choice of messages by their properties, in RocketMQ's SQL92.

    condition = and { OR and }                     and = equality { AND equality }
    equality  = comparison { (= | <>) comparison | IS [NOT] NULL }
    comparison = unary { (> | >= | < | <=) unary | [NOT] BETWEEN unary AND unary
                       | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text | [NOT] IN (text, …) }
    unary     = (+ | - | NOT) unary | text | number | TRUE | FALSE | NULL | name | ( condition )

Names of properties are case-sensitive, other words are not. `--` to the end of its line and
`/* … */` are comments. The value of a property is a text; compared with a number or a truth value,
it is converted to that kind. This follows Java, strange as it is:

* NOT binds closer than a comparison. `NOT a = 'x'` is `(NOT a) = 'x'`; write `NOT (a = 'x')`.
* A property alone is not a truth value: `a` is never true, whatever it holds, but `a = TRUE` may
  be.
* A comparison that is impossible (`a > 5` if a is `red`, or beyond 32 bits) makes the whole
  condition false, unless an earlier part has already decided it.
* An absent property is unknown, as in SQL. But CONTAINS and its like are false for it, with or
  without NOT, and two absent properties are equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import copysign, isinf, isnan
from operator import ge, gt, le, lt
from typing import Final, NoReturn

from tieredstore.codec.java import INT32_MIN, trim
from tieredstore.codec.record import decode_properties, peek_property_bytes
from tieredstore.codec.tags_filter import TagsFilter
from tieredstore.model.errors import InvalidArgumentError
from tieredstore.model.values import INT32_MAX, INT64_MAX, require_text

TAG: Final = "TAG"
SQL92: Final = "SQL92"
EXPRESSION_CHARACTERS_MAX: Final = 16_384
DEPTH_MAX: Final = 50  # levels of nesting
INT64_DIGITS: Final = 19  # of INT64_MAX; numbers have no leading zeros

_Value = str | int | float | bool | None
_Evaluate = Callable[[Mapping[str, str]], _Value]

_TOKENS: Final = re.compile(
    r"""(?P<blank>[ \t\n\r\f]+ | --[^\n\r]*(?:\r\n|[\n\r]) | /\*.*?\*/)
      | (?P<text>'(?:''|[^'])*')
      | (?P<real>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:E[+-]?[0-9]+)? | [0-9]+E[+-]?[0-9]+)
      | (?P<whole>0|[1-9][0-9]*L?)
      | (?P<word>[A-Z_$][A-Z0-9_$]*)
      | (?P<sign><>|>=|<=|[=<>(),+-])""",
    re.VERBOSE | re.DOTALL | re.ASCII | re.IGNORECASE,
)
_CONSTANTS: Final[Mapping[str, bool | None]] = {"TRUE": True, "FALSE": False, "NULL": None}
_ORDERS: Final[Mapping[str, Callable[[int, int], bool]]] = {">": gt, ">=": ge, "<": lt, "<=": le}
_SEARCHES: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_RESERVED: Final = frozenset(
    {"NOT", "AND", "OR", "BETWEEN", "IN", "IS", *_CONSTANTS, *_SEARCHES},
)
_WHOLE: Final = re.compile(r"[+-]?\d+")  # digits of any script, as in Java
_REAL: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|"
    r"(?P<hex>0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+))[fFdD]?)",
    re.ASCII,
)


def filter_of(expression: str, kind: str = TAG) -> TagsFilter | SqlFilter | None:
    """The filter of a subscription; None if it accepts every message.

    `kind` is RocketMQ's expression type: TAG, also written as "", or SQL92. Raises
    InvalidArgumentError for other kinds, and for an invalid expression.
    """
    require_text("kind of expression", kind)
    if kind == SQL92:
        return SqlFilter(expression)
    if kind not in ("", TAG):
        raise InvalidArgumentError(f"kind of expression: {kind!r:.80}; want {TAG} or {SQL92}")
    by_tags = TagsFilter(expression)
    return None if by_tags.takes_all else by_tags


class SqlFilter:
    """A `MessageFilter` that accepts messages whose properties fulfil a condition.

    Raises InvalidArgumentError, with the place, for an invalid condition, one longer than
    EXPRESSION_CHARACTERS_MAX, or one nested deeper than DEPTH_MAX.
    """

    tags_codes: Final = None  # every record must be checked

    def __init__(self, expression: str) -> None:
        require_text("sql", expression)
        if len(expression) > EXPRESSION_CHARACTERS_MAX:
            raise InvalidArgumentError(f"sql: more than {EXPRESSION_CHARACTERS_MAX} characters")
        self.expression = expression
        self._evaluate = _Parser(expression).condition()

    def matches_tags_code(self, tags_code: int) -> bool:
        return True

    def matches_record(self, record: bytes) -> bool:
        return self.matches(decode_properties(peek_property_bytes(record)))

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether the condition is true: not false, not unknown, and without an impossible
        comparison."""
        try:
            return self._evaluate(properties) is True
        except _NotComparableError:
            return False


class _NotComparableError(Exception):
    """Two values cannot be compared, not even for equality."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Term:
    """A parsed part of a condition, and what the parser knows about it."""

    evaluate: _Evaluate
    depth: int = 1
    is_property: bool = False
    is_truth: bool = False  # gives True, False, or None for unknown
    is_constant: bool = False
    constant: _Value = None


class _Parser:
    """Reads a condition once, from the left, and makes a function that evaluates it without the
    text."""

    def __init__(self, expression: str) -> None:
        self._text = expression
        self._end = 0
        self._depth = 0
        self._advance()

    def condition(self) -> _Evaluate:
        term = self._truth(self._or())
        if self._kind:
            self._fail("the condition ends before this")
        return term.evaluate

    # -- grammar ------------------------------------------------------------------------------

    def _or(self) -> _Term:
        return self._joined("OR", lambda: self._joined("AND", self._equality, _all), _any)

    def _joined(
        self,
        word: str,
        part: Callable[[], _Term],
        join: Callable[[Sequence[_Evaluate]], _Evaluate],
    ) -> _Term:
        first = part()
        if not self._is(word):
            return first
        terms = [self._truth(first)]
        while self._take(word):
            terms.append(self._truth(part()))
        return self._above(join([term.evaluate for term in terms]), *terms)

    def _equality(self) -> _Term:
        left = self._comparison()
        while self._is("=", "<>", "IS"):
            sign = self._taken()
            if sign == "IS":
                is_not = self._take("NOT")
                self._want("NULL")
                equal = _equal(left.evaluate, _constant(None))
                left = self._above(_not(equal) if is_not else equal, left)
                continue
            right = self._comparison()
            for side in (left, right):
                if side.is_constant and side.constant is None:
                    self._fail("NULL equals nothing: want IS NULL or IS NOT NULL")
            if left.is_constant and right.is_constant and left.is_truth > right.is_truth:
                self._fail("a truth is compared with something else")
            equal = _equal(left.evaluate, right.evaluate)
            left = self._above(equal if sign == "=" else _not(equal), left, right)
        return left

    def _comparison(self) -> _Term:
        left = self._unary()
        while self._is(*_ORDERS, *_SEARCHES, "NOT", "BETWEEN", "IN"):
            if self._is(*_ORDERS):
                left = self._ordered(self._taken(), left, self._unary())
                continue
            is_not = self._take("NOT")
            if self._is(*_SEARCHES):
                found = _search(_SEARCHES[self._taken()], left.evaluate, self._string(), is_not)
                left = self._above(found, left)
            elif self._take("IN"):
                left = self._one_of(left, is_not)
            else:
                self._want("BETWEEN")
                left = self._between(left, is_not)
        return left

    def _one_of(self, left: _Term, is_not: bool) -> _Term:
        if not left.is_property:
            self._fail("IN is for a property")
        self._want("(")
        texts = {self._string()}
        while self._take(","):
            texts.add(self._string())
        self._want(")")
        return self._above(_one_of(left.evaluate, frozenset(texts), is_not), left)

    def _between(self, left: _Term, is_not: bool) -> _Term:
        low = self._unary()
        self._want("AND")
        high = self._unary()
        if is_not:
            sides = self._ordered("<", left, low), self._ordered(">", left, high)
            return self._above(_any([side.evaluate for side in sides]), *sides)
        sides = self._ordered(">=", left, low), self._ordered("<=", left, high)
        both = low.is_constant and high.is_constant
        if both and _compare(high.constant, low.constant) < 0:
            self._fail("nothing is between these: the smaller one comes first")
        return self._above(_all([side.evaluate for side in sides]), *sides)

    def _ordered(self, sign: str, left: _Term, right: _Term) -> _Term:
        for side in (left, right):
            is_number = type(side.constant) in (int, float)
            if side.is_truth or (side.is_constant and not is_number):
                self._fail(f"{sign} is for numbers and properties")
        return self._above(_order(_ORDERS[sign], left.evaluate, right.evaluate), left, right)

    def _unary(self) -> _Term:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(f"more than {DEPTH_MAX} levels")
        try:
            if self._take("+"):
                return self._unary()
            if self._take("-"):
                term = self._unary()
                return self._above(_negated(term.evaluate), term, is_truth=False)
            if self._take("NOT"):
                term = self._truth(self._unary())
                return self._above(_not(term.evaluate), term)
            if self._take("("):
                term = self._or()
                self._want(")")
                return term
            return self._operand()
        finally:
            self._depth -= 1

    def _operand(self) -> _Term:
        if self._kind == "text":
            return self._known(self._string())
        if self._kind == "word" and self._token.upper() in _CONSTANTS:
            return self._known(_CONSTANTS[self._taken()], is_truth=True)
        if self._kind == "word" and self._token.upper() not in _RESERVED:
            name = self._token
            self._advance()
            return _Term(evaluate=lambda properties: properties.get(name), is_property=True)
        if self._kind == "whole":
            digits = self._token.rstrip("lL")
            # Check the length first: Python raises an error of its own for thousands of digits.
            if len(digits) > INT64_DIGITS or int(digits) > INT64_MAX:
                self._fail("the number has more than 64 bits")
            self._advance()
            return self._known(int(digits))
        if self._kind != "real":
            self._fail("a property, a text or a number is missing")
        real = float(self._taken())
        if isinf(real):
            self._fail("the number is too large")
        return self._known(real)

    # -- words --------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Go to the next token; only one, so that parsing stops at an error."""
        while True:
            self._start = self._end
            found = _TOKENS.match(self._text, self._start)
            if found is None:
                self._kind = self._token = ""
                if self._start < len(self._text):
                    self._fail("unknown sign, or a text or comment without an end")
                return
            self._kind, self._token, self._end = found.lastgroup or "", found[0], found.end()
            if self._kind != "blank":
                return

    def _is(self, *words: str) -> bool:
        return self._kind in ("word", "sign") and self._token.upper() in words

    def _taken(self) -> str:
        token = self._token.upper()
        self._advance()
        return token

    def _take(self, word: str) -> bool:
        is_there = self._is(word)
        if is_there:
            self._advance()
        return is_there

    def _want(self, word: str) -> None:
        if not self._take(word):
            self._fail(f"{word} is missing")

    def _string(self) -> str:
        if self._kind != "text":
            self._fail("a text in single quotes is missing")
        text = self._token[1:-1].replace("''", "'")
        self._advance()
        return text

    # -- terms --------------------------------------------------------------------------------

    def _known(self, value: _Value, *, is_truth: bool = False) -> _Term:
        evaluate = _constant(value)
        return _Term(evaluate=evaluate, is_constant=True, constant=value, is_truth=is_truth)

    def _above(self, evaluate: _Evaluate, *parts: _Term, is_truth: bool = True) -> _Term:
        depth = 1 + max(part.depth for part in parts)
        if depth > DEPTH_MAX:
            self._fail(f"more than {DEPTH_MAX} levels")
        return _Term(evaluate=evaluate, depth=depth, is_truth=is_truth)

    def _truth(self, term: _Term) -> _Term:
        if term.is_truth:
            return term
        if not term.is_property:
            self._fail("what stands before this is neither true nor false")
        value = term.evaluate
        return self._above(lambda properties: None if value(properties) is None else False, term)

    def _fail(self, reason: str) -> NoReturn:
        place = f"at character {self._start + 1} of {self._text!r:.200}"
        raise InvalidArgumentError(f"sql: {reason}, {place}")


# -- evaluation of the parts of a condition ------------------------------------------------------


def _constant(value: _Value) -> _Evaluate:
    return lambda _: value


def _all(parts: Sequence[_Evaluate]) -> _Evaluate:
    return _until(False, parts)


def _any(parts: Sequence[_Evaluate]) -> _Evaluate:
    return _until(True, parts)


def _until(decisive: bool, parts: Sequence[_Evaluate]) -> _Evaluate:
    """Evaluate parts until one has the decisive value; otherwise None if any is unknown, else the
    opposite of the decisive value."""

    def evaluate(properties: Mapping[str, str]) -> _Value:
        undecided: _Value = not decisive
        for part in parts:
            value = part(properties)
            if value is decisive:
                return decisive
            if value is None:
                undecided = None
        return undecided

    return evaluate


def _not(part: _Evaluate) -> _Evaluate:
    def evaluate(properties: Mapping[str, str]) -> _Value:
        value = part(properties)
        return None if value is None else not value

    return evaluate


def _negated(part: _Evaluate) -> _Evaluate:
    def evaluate(properties: Mapping[str, str]) -> _Value:
        value = part(properties)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return -value if is_number else None  # type: ignore[operator]

    return evaluate


def _equal(left: _Evaluate, right: _Evaluate) -> _Evaluate:
    def evaluate(properties: Mapping[str, str]) -> _Value:
        one, other = left(properties), right(properties)
        if one is None:
            return True if other is None else None
        return other is not None and _compare(one, other) == 0

    return evaluate


def _order(sign: Callable[[int, int], bool], left: _Evaluate, right: _Evaluate) -> _Evaluate:
    def evaluate(properties: Mapping[str, str]) -> _Value:
        one = left(properties)
        if one is None:
            return None
        other = right(properties)
        if other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            one, other = _real(one), _real(other)
        return sign(_compare(one, other), 0)

    return evaluate


def _one_of(part: _Evaluate, texts: frozenset[str], is_not: bool) -> _Evaluate:
    def evaluate(properties: Mapping[str, str]) -> _Value:
        value = part(properties)
        return None if value is None else (value in texts) is not is_not

    return evaluate


def _search(
    found: Callable[[str, str], bool], part: _Evaluate, wanted: str, is_not: bool
) -> _Evaluate:
    def evaluate(properties: Mapping[str, str]) -> _Value:
        value = part(properties)
        if not wanted or not isinstance(value, str):
            return False
        return found(value, wanted) is not is_not

    return evaluate


# -- Java's comparisons --------------------------------------------------------------------------


def _compare(left: _Value, right: _Value) -> int:
    """Below, at or above 0, as Java compares values of these kinds.

    A text is converted to the kind of the other side. Between a truth value and a number, the left
    one is always the smaller. A truth value on the left cannot be compared with a text.
    """
    if isinstance(left, bool) and isinstance(right, str):
        raise _NotComparableError
    if isinstance(right, bool) and isinstance(left, str):
        left = left.lower() == "true"
    if isinstance(left, bool) is not isinstance(right, bool):
        return -1
    if isinstance(left, str) and not isinstance(right, str):
        left = _like(right, left)
    elif isinstance(right, str) and not isinstance(left, str):
        right = _like(left, right)
    if isinstance(left, float) or isinstance(right, float):
        return _sign(_place(left), _place(right))
    return _sign(left, right)


def _sign(left: object, right: object) -> int:
    return (left > right) - (left < right)  # type: ignore[operator, no-any-return]


def _place(value: _Value) -> tuple[bool, float, float]:
    """Java's order of numbers: 0.0 comes after -0.0, and NaN after all others."""
    number = float(value)  # type: ignore[arg-type]
    return (True, 0.0, 0.0) if isnan(number) else (False, number, copysign(1.0, number))


def _like(number: _Value, text: str) -> int | float:
    """The number in a text, which must be of the same kind as `number`."""
    if isinstance(number, float):
        return _real(text)
    most = INT32_MAX if INT32_MIN < number <= INT32_MAX else INT64_MAX  # type: ignore[operator]
    if len(text) > 64 or not _WHOLE.fullmatch(text):
        raise _NotComparableError
    value = int(text)
    if not -most - 1 <= value <= most:
        raise _NotComparableError
    return value


def _real(text: str) -> float:
    trimmed = trim(text)
    found = _REAL.fullmatch(trimmed)
    if found is None:
        raise _NotComparableError
    if found["hex"] is None:
        infinite = trimmed.endswith("y")
        return float(trimmed if infinite else trimmed.rstrip("fFdD"))
    try:
        return float.fromhex(trimmed.rstrip("fFdD"))
    except OverflowError:
        return float("-inf" if trimmed.startswith("-") else "inf")
