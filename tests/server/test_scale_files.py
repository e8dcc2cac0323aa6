"""The files of examples/serve agree with each other."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from pyllama_spec.cli.entry import command_parser

FOLDER = Path(__file__).parents[2] / "examples" / "serve"
COMPOSE, HAPROXY, NGINX, DOCKERFILE, TLS, UNIT = (
    (FOLDER / name).read_text()
    for name in ("compose.yaml", "haproxy.cfg", "nginx.conf", "../../Dockerfile", "nginx-tls.conf",
                 "pyllama-spec.service")
)  # fmt: skip


def number(pattern: str, text: str) -> int:
    """The one number that stands there."""
    (found,) = re.findall(pattern, text, re.M)
    return int(found)


def test_the_proxies_send_to_the_servers_of_the_compose_file() -> None:
    services = re.findall(r"^  ([\w-]+): \*worker$", COMPOSE, re.M)
    (line,) = re.findall(r"command: >\n +(.*)$", COMPOSE, re.M)
    command = command_parser().parse_args(shlex.split(line))
    assert command.host == "0.0.0.0"
    expected = [f"{name}:{command.port}" for name in services]
    assert len(expected) == 2
    assert re.findall(r"^ +server [\w-]+ ([\w.:-]+)$", HAPROXY, re.M) == expected
    assert re.findall(r"^ +server ([\w-]+:\d+)", NGINX, re.M) == expected
    (port,) = re.findall(r'ports: \["127\.0\.0\.1:\d+:(\d+)"\]', COMPOSE)
    assert number(r"^ +bind :(\d+)$", HAPROXY) == number(r"^ +listen (\d+);$", NGINX) == int(port)
    # What the command reads is put there.
    (config,) = re.findall(r"\./models\.toml:(\S+):ro", COMPOSE)
    assert str(command.config) == config
    assert str(command.api_key_file) == "/run/secrets/keys"
    assert "keys: {file: ./keys.txt}" in COMPOSE
    assert 'ENTRYPOINT ["pyllama-spec"]' in DOCKERFILE
    assert "haproxy.cfg:/usr/local/etc/haproxy/haproxy.cfg:ro" in COMPOSE


def test_the_unit_and_its_proxy_agree() -> None:
    (line,) = re.findall(r"^ExecStart=(\S+) ((?:.*\\\n)*.*)$", UNIT, re.M)
    assert line[0].endswith("/bin/pyllama-spec")
    command = command_parser().parse_args(shlex.split(line[1].replace("\\\n", " ")))
    assert re.findall(r"^ +proxy_pass http://(\S+);$", TLS, re.M) == [
        f"{command.host}:{command.port}"
    ]
    (name,) = re.findall(r"^ +server_name (\S+);$", TLS, re.M)
    assert list(command.allowed_hosts) == [name]
    assert number(r"^TimeoutStopSec=(\d+)$", UNIT) > command.stop_timeout_s
    assert "ExecReload=/bin/kill -HUP $MAINPID" in UNIT
    page = (FOLDER.parents[1] / "docs" / "server-service.md").read_text()
    for told in (str(command.api_key_file), f"--allowed-hosts {name}", "PYLLAMA_SPEC_API_KEY"):
        assert told in page
    assert "PYLLAMA_SPEC_API_KEY" in UNIT
