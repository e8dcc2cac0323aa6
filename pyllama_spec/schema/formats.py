"""The supported text formats, as patterns; some are narrower than the format."""

from __future__ import annotations

from functools import lru_cache

from pyllama_spec.schema.languages import Lang
from pyllama_spec.schema.patterns import pattern_language

_DATE = (
    "(?!0000)[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|"
    "(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))|"
    "([0-9][0-9](0[48]|[2468][048]|[13579][26])|"
    "(0[48]|[2468][048]|[13579][26])00)-02-29"
)
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
    r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"({_OCTET}\.){{3}}{_OCTET}"
_H16 = "[0-9a-fA-F]{1,4}"
_LS32 = f"({_H16}:{_H16}|{_IPV4})"
_IPV6 = "|".join(
    [
        f"({_H16}:){{6}}{_LS32}",
        f"::({_H16}:){{5}}{_LS32}",
        f"({_H16})?::({_H16}:){{4}}{_LS32}",
        f"(({_H16}:){{0,1}}{_H16})?::({_H16}:){{3}}{_LS32}",
        f"(({_H16}:){{0,2}}{_H16})?::({_H16}:){{2}}{_LS32}",
        f"(({_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}",
        f"(({_H16}:){{0,4}}{_H16})?::{_LS32}",
        f"(({_H16}:){{0,5}}{_H16})?::{_H16}",
        f"(({_H16}:){{0,6}}{_H16})?::",
    ]
)
# At most 61 characters per label and four labels: a host name has at most 63 and 253.
_LABEL = "[a-zA-Z0-9](-?[a-zA-Z0-9]){0,30}"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,3}}"
_UUID = "[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_PART = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
_EMAIL = (
    rf"(?=[^@]{{1,64}}@){_PART}(\.{_PART})*@"
    rf"([a-zA-Z0-9]([a-zA-Z0-9-]{{0,20}}[a-zA-Z0-9])?\.){{1,4}}[a-zA-Z]{{2,20}}"
)
# The same without the lengths of their parts: none of at most 63 characters has one too long. Their
# automata are so small that the characters of a whole text can be counted.
_SHORT = {
    "hostname": r"[a-zA-Z0-9](-?[a-zA-Z0-9])*(\.[a-zA-Z0-9](-?[a-zA-Z0-9])*)*",
    "email": rf"{_PART}(\.{_PART})*@([a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?\.)+[a-zA-Z]{{2,}}",
}
SHORT_LENGTH = 63
_N = "[0-9]{1,4}"
_CLOCK = f"T({_N}H({_N}M({_N}S)?)?|{_N}M({_N}S)?|{_N}S)"
_DURATION = f"P(({_N}D|{_N}M({_N}D)?|{_N}Y({_N}M({_N}D)?)?)({_CLOCK})?|{_CLOCK}|{_N}W)"
_CHAR = "([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
_PORT = "(:[0-9]{1,5})?"
_SERVER = rf"([a-zA-Z0-9._~!$&'()*+,;=:-]+@)?[a-zA-Z0-9][a-zA-Z0-9.-]*{_PORT}"
_TAIL = rf"(\?({_CHAR}|[/?])*)?(#({_CHAR}|[/?])*)?"
_PATHS = rf"(//{_SERVER}(/{_CHAR}*)*|/?({_CHAR}+(/{_CHAR}*)*)?)"
_URI = rf"[a-zA-Z][a-zA-Z0-9+.-]*:{_PATHS}{_TAIL}"
_SEGMENT = "([a-zA-Z0-9._~!$&'()*+,;=@-]|%[0-9a-fA-F]{2})"
_RELATIVE = rf"(//{_SERVER}(/{_CHAR}*)*|/({_CHAR}+(/{_CHAR}*)*)?|{_SEGMENT}+(/{_CHAR}*)*)?{_TAIL}"
_STEP = "(/([^~/]|~[01])*)"

_PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"({_DATE})T{_TIME}",
    "duration": _DURATION,
    "uuid": _UUID,
    **{f"uuid{n}": f"[0-9a-fA-F]{{8}}-[0-9a-fA-F]{{4}}-{n}[0-9a-fA-F]{{3}}-[89abAB]"
       "[0-9a-fA-F]{3}-[0-9a-fA-F]{12}" for n in (1, 3, 4, 5, 6, 7, 8)},
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "ipvanyaddress": f"{_IPV4}|{_IPV6}",
    "hostname": _HOST,
    "idn-hostname": _HOST,
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "uri": _URI,
    "iri": _URI,
    "uri-reference": f"{_URI}|{_RELATIVE}",
    "iri-reference": f"{_URI}|{_RELATIVE}",
    "json-pointer": f"{_STEP}*",
    "base64": "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
    "byte": "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
    "base64url": "([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?",
}  # fmt: skip

KEPT_FORMATS = tuple(_PATTERNS)
# They say how to show or to store a text, and restrict none.
FREE_FORMATS = ("binary", "password", "path", "multi-line", "text", "markdown", "html")
# The bounds of the number formats.
NUMBER_FORMATS: dict[str, tuple[int, int] | None] = {
    "int8": (-(2**7), 2**7 - 1), "int16": (-(2**15), 2**15 - 1), "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1), "uint8": (0, 2**8 - 1), "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1), "uint64": (0, 2**64 - 1), "float": None, "double": None,
}  # fmt: skip


@lru_cache(maxsize=64)
def format_language(name: str) -> Lang | None:
    """The set of a format's texts; None if the format is unknown."""
    pattern = _PATTERNS.get(name)
    return None if pattern is None else pattern_language(f"^({pattern})$")


@lru_cache(maxsize=64)
def short_language(lang: Lang) -> Lang | None:
    """A format by a small automaton, right for at most SHORT_LENGTH characters; None if unknown."""
    for name, pattern in _SHORT.items():
        if lang == format_language(name):
            return pattern_language(f"^({pattern})$")
    return None
