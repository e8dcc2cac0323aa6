"""JSON schemas as grammars: a keyword is enforced completely or refused by name."""

from pyllama_spec.errors import SchemaError
from pyllama_spec.schema.compiler import (
    Loosened,
    SchemaRules,
    argument_rules,
    beside_properties,
    loosened_rules,
    regex_rules,
    schema_rules,
)
from pyllama_spec.schema.limits import Budget

__all__ = [
    "Budget",
    "Loosened",
    "SchemaError",
    "SchemaRules",
    "argument_rules",
    "beside_properties",
    "loosened_rules",
    "regex_rules",
    "schema_rules",
]
