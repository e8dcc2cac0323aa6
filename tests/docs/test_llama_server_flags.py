"""The page of llama-server's flags has the flags of the command."""

from __future__ import annotations

from pyllama_spec.server.llama_server_flags import FLAGS
from tools.docs import llama_server_flags


def test_the_page_has_each_flag_that_is_taken() -> None:
    rows = {(row.names, row.variable, row.field) for row in llama_server_flags.rows()}
    assert rows == {(flag.names, flag.variable, flag.field) for flag in FLAGS}
    page = llama_server_flags.page()
    assert all(f"`{name}`" in page for flag in FLAGS for name in flag.names)
