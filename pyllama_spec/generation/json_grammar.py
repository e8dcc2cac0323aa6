"""The grammar behind response_format={"type": "json_object"}."""

from __future__ import annotations

# White space is bounded, because a model that may write it without end sometimes does; numbers
# are, because beyond this Python and JavaScript round them. Nothing may follow the last brace.
JSON_OBJECT = r"""
root   ::= object
object ::= "{" ws ( pair ws ( "," ws pair ws )* )? "}"
pair   ::= string ws ":" ws value
array  ::= "[" ws ( value ws ( "," ws value ws )* )? "]"
value  ::= object | array | string | number | "true" | "false" | "null"
string ::= "\"" char* "\""
char   ::= [^"\\\x00-\x1F\x7F] | "\\" ( ["\\/bfnrt] | "u" hex hex hex hex )
hex    ::= [0-9a-fA-F]
number ::= "-"? ( "0" | [1-9] [0-9]{0,15} ) ( "." [0-9]{1,16} )? ( [eE] [-+]? [0-9]{1,2} )?
ws     ::= "\n"? [ \t]{0,20}
"""
