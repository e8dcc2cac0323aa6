"""Limits the steps, the time and the text sizes of chat templates.

A template comes with a model's file and is a program. jinja2's sandbox keeps it from Python's
internals, but not from running without end or from filling the memory: `'a' * 10**9`,
`|indent(10**9)`, `'%999999999d'`, a text that is doubled forty times, loops in loops. So the tree
is changed before it is compiled: each round of a loop, each call, filter, sum and piece of output
is counted here, and an operation that would make a large text is refused before it runs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import jinja2.nodes
import jinja2.sandbox
import jinja2.visitor

from pyllama_spec.errors import UnsupportedError

# Far above what a conversation of a million tokens takes, and far below what hurts.
MAX_SOURCE_CHARS = 1_000_000
MAX_TEXT_CHARS = 1 << 25
MAX_STEPS = 2_000_000
MAX_SECONDS = 10.0
# A width, an indent, a repetition: the largest number that a template may use for one.
MAX_NUMBER = 10_000
# Rounds between two looks at the clock.
_STEPS_PER_LOOK = 64
_STEP_NAME = "pyllama_spec_step"
_SIZE_NAME = "pyllama_spec_size"
# Functions that make random text, of any length.
_UNWANTED_GLOBALS = ("lipsum",)


class TemplateLimitError(UnsupportedError):
    """A chat template exceeds the limit of steps, time or text size."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the chat template {what}; give another as chat_template=")


class _Budget:
    """The remaining budget of one rendering, in steps and processor time of the thread."""

    def __init__(self) -> None:
        self.steps, self.chars = MAX_STEPS, MAX_TEXT_CHARS
        self.until = time.thread_time() + MAX_SECONDS

    def spend(self, chars: int) -> None:
        self.steps -= 1
        self.chars -= chars
        if self.steps < 0:
            raise TemplateLimitError(f"takes more than {MAX_STEPS} steps")
        if self.chars < 0:
            raise _too_large()
        if self.steps % _STEPS_PER_LOOK == 0 and time.thread_time() > self.until:
            raise TemplateLimitError(f"takes more than {MAX_SECONDS:.0f} seconds")


_BUDGET: ContextVar[_Budget | None] = ContextVar("what a rendering has left", default=None)


@contextmanager
def limited() -> Iterator[None]:
    """All renderings in the block share one budget."""
    token = _BUDGET.set(_Budget())
    try:
        yield
    finally:
        _BUDGET.reset(token)


class LimitedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """jinja2's sandbox with limits."""

    intercepted_binops = frozenset(["*", "+", "%", "**"])

    def __init__(self, **options: Any) -> None:
        # Constants are not computed while a template is compiled: nothing counts there.
        super().__init__(**options, optimized=False, finalize=_finalize)
        for name in _UNWANTED_GLOBALS:
            self.globals.pop(name, None)
        for name, function in list(self.filters.items()):
            self.filters[name] = guarded_filter(name, function)
        self.filters[_STEP_NAME] = _step
        self.filters[_SIZE_NAME] = _checked

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateLimitError(
                f"has {len(source)} characters; at most {MAX_SOURCE_CHARS} are compiled"
            )
        tree = super()._parse(source, name, filename)
        _Counter().visit(tree)
        tree.set_environment(self)
        return tree

    def plain_tree(self, source: str) -> jinja2.nodes.Template:
        """The template's parse tree, without the counters."""
        return super()._parse(source, None, None)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Computes sums, products, powers and formats whose results are within the limit."""
        _spend(0)
        if operator == "*":
            _check_product(left, right)
        elif operator == "**":
            _each_number([left, right])
        elif operator == "%" and isinstance(left, (str, bytes)):
            _check_format(left, right)
        return _checked(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """jinja2's own format() and format_map(), with checked widths."""
        inner = super().wrap_str_format(value)
        if inner is None:
            return None

        @wraps(inner)
        def checked(*args: Any, **kwargs: Any) -> str:
            _check_format(value.__self__, args, kwargs)
            return inner(*args, **kwargs)

        return checked

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Calls a function of the template if its result is within the limit."""
        _spend(0)
        _check_call(__obj, args, kwargs)
        return _checked(super().call(__context, __obj, *args, **kwargs))


class _Counter(jinja2.visitor.NodeTransformer):
    """Adds counters to loops and bodies, and checks to sums and comparisons."""

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, _step_node(node.body))
        if node.test is not None:
            node.test = jinja2.nodes.And(_filter(jinja2.nodes.Const(0), _STEP_NAME), node.test)
        return node

    def _body(self, node: Any) -> jinja2.nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _step_node(node.body))
        return node  # type: ignore[no-any-return]

    visit_Macro = visit_CallBlock = visit_FilterBlock = visit_Block = _body  # noqa: N815

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_filter(one, _SIZE_NAME) for one in node.nodes]
        return _filter(node, _SIZE_NAME)

    def visit_Compare(self, node: jinja2.nodes.Compare) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filter(node.expr, _SIZE_NAME)
        for operand in node.ops:
            operand.expr = _filter(operand.expr, _SIZE_NAME)
        return node


def _filter(node: jinja2.nodes.Expr, name: str) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _step_node(body: list[jinja2.nodes.Node]) -> jinja2.nodes.ExprStmt:
    """A node that spends a step and the number of characters of the body's text."""
    chars = sum(
        len(data.data) for node in body for data in node.find_all(jinja2.nodes.TemplateData)
    )
    return jinja2.nodes.ExprStmt(_filter(jinja2.nodes.Const(chars), _STEP_NAME))


def _spend(chars: int) -> None:
    budget = _BUDGET.get()
    if budget is not None:
        budget.spend(chars)


def _step(chars: int) -> bool:
    _spend(chars)
    return True


def _finalize(value: Any) -> Any:
    """Spends the characters of each piece of output."""
    if isinstance(value, str):
        _spend(len(value))
    else:
        _checked(value)
        _spend(0)
    return value


def _too_large() -> TemplateLimitError:
    return TemplateLimitError(f"makes a text or a list of more than {MAX_TEXT_CHARS} characters")


def size_of(value: Any) -> int:
    """The approximate number of characters of a value as text; stops counting at the limit."""
    if isinstance(value, (str, bytes)):
        return len(value)
    total, left = 0, [value]
    while left and total <= MAX_TEXT_CHARS:
        item = left.pop()
        if isinstance(item, (str, bytes)):
            total += len(item) + 4
        elif isinstance(item, int):
            total += 4 + item.bit_length() // 3
        elif isinstance(item, Mapping):
            total += 2 + len(item)
            left += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple, set, frozenset)):
            total += 2 + len(item)
            left += item
        else:
            total += 8
    return total


def _checked(value: Any) -> Any:
    if size_of(value) > MAX_TEXT_CHARS:
        raise _too_large()
    return value


def _check_size(n: float) -> None:
    if n > MAX_TEXT_CHARS:
        raise _too_large()


def _check_number(value: Any) -> None:
    if isinstance(value, (int, float)) and abs(value) > MAX_NUMBER:
        raise TemplateLimitError(
            f"asks for the number {value!s:.20}; at most {MAX_NUMBER} is allowed"
        )


def _check_product(left: Any, right: Any) -> None:
    for many, times in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(many, (str, bytes, list, tuple)):
            _check_size(max(times, 0) * max(size_of(many), 1))
    if isinstance(left, int) and isinstance(right, int):
        _check_size(left.bit_length() + right.bit_length())


def _check_format(form: Any, *values: Any) -> None:
    """Refuses widths and precisions of five digits, or taken from the values."""
    text = form.decode("latin-1") if isinstance(form, bytes) else str(form)
    if re.search(r"\d{5,}", text):
        raise TemplateLimitError("formats a text with a width of five digits or more")
    if re.search(r"%[^%a-zA-Z]*\*|\{[^{}]*\{", text):
        _each_number(values)


def _each_number(value: Any) -> None:
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, Mapping):
            left += item.values()
        elif isinstance(item, (list, tuple)):
            left += item
        else:
            _check_number(item)


def _check_call(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuses methods of texts and numbers that make large results of small arguments."""
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, (str, bytes, int, float, list, tuple)):
        return
    name = getattr(function, "__name__", "")
    if name == "replace" and len(args) >= 2:
        _check_replace(owner, args[0], args[1])
    elif name == "join" and args:
        _check_size(size_of(args[0]) + size_of(owner) * _length(args[0]))
    elif name == "translate" and args and isinstance(args[0], Mapping):
        _check_size(size_of(owner) * max([1, *(size_of(v) for v in args[0].values())]))
    elif name == "expandtabs":
        _each_number((args, kwargs))
        tabs = owner.count("\t") if isinstance(owner, str) else 0
        _check_size(size_of(owner) + tabs * MAX_NUMBER if args or kwargs else 0)
    elif name in ("ljust", "rjust", "center", "zfill", "to_bytes"):
        _each_number((args[:1], kwargs))


def _check_replace(text: Any, old: Any, new: Any) -> None:
    is_plain = isinstance(text, str) and isinstance(old, str)
    n = text.count(old) if is_plain else _length(text) + 1
    _check_size(size_of(text) + n * size_of(new))


def _length(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 0


def _check_filter(name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    every = [*args, *kwargs.values()]
    if name == "format":
        _check_format(value, *every)
        return
    if name == "replace" and len(args) >= 2:
        _check_replace(str(value), str(args[0]), str(args[1]))
        return
    if name in ("string", "int", "float", "round", "abs", "default", "d", "sum", "min", "max"):
        return
    for one in every:
        _check_number(one)
    # An indent for each line, a border for each item, a fill for each row.
    lines = str(value).count("\n") + 1 if isinstance(value, str) else _length(value) + 1
    if name in ("indent", "join", "wordwrap", "tojson", "batch", "slice", "center", "urlize"):
        if name in ("wordwrap", "tojson"):
            lines = size_of(value) + 1
        per_line = sum(one if isinstance(one, int) else size_of(one) for one in every)
        _check_size(size_of(value) + lines * max(per_line, 0))


def guarded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter with checks of its arguments and its result."""
    n_own = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        _spend(0)
        own = args[n_own:]
        if own:
            _checked(own[0])
            _check_filter(name, own[0], own[1:], kwargs)
        return _checked(function(*args, **kwargs))

    return guarded
