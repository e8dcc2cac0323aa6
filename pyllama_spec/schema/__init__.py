"""JSON schemas as grammars: what is kept is kept whole, and everything else is refused by name."""

from pyllama_spec.errors import SchemaError
from pyllama_spec.schema.compiler import Loosened, SchemaRules, loosened_rules, schema_rules

__all__ = ["Loosened", "SchemaError", "SchemaRules", "loosened_rules", "schema_rules"]
