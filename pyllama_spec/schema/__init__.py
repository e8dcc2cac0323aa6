"""JSON schemas as grammars: a keyword is enforced completely or refused by name."""

from pyllama_spec.errors import SchemaError
from pyllama_spec.schema.compiler import Loosened, SchemaRules, loosened_rules, schema_rules

__all__ = ["Loosened", "SchemaError", "SchemaRules", "loosened_rules", "schema_rules"]
