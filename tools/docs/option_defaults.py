"""An extension of griffe: the API pages show an option's default in place of option(...)."""

from __future__ import annotations

from typing import Any

import griffe


class OptionDefaults(griffe.Extension):  # type: ignore[misc]
    """See the module's docstring."""

    def on_attribute_instance(self, *, attr: Any, **_: object) -> None:
        """Called for each attribute that is read."""
        value = attr.value
        if isinstance(value, griffe.ExprCall) and str(value.function) == "option":
            first = value.arguments[0] if value.arguments else None
            attr.value = None if isinstance(first, griffe.ExprKeyword) else first
