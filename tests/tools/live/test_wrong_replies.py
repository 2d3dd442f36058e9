"""A server that replies with other types than its commands have: tools say so in a line, and show no traceback."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from riverbed.tools.cli import main
from tests.conftest import base_seed
from tests.support.faults.liar import liar
from tests.support.servers import RiverbedServer

pytestmark = pytest.mark.slow

COMMANDS = [
    "stat URL",
    "stat URL --groups",
    "dump URL s",
    "import URL NEW",
    "load URL t ROWS",
    "top URL --json --count 1",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reply_of_another_type_is_told_in_a_line(riverbed: RiverbedServer, tmp_path: Path, command: str) -> None:
    with riverbed.client() as client:
        client.pipeline([("XADD", "s", f"{number}-1", "f", "v") for number in range(1, 30)])
        client.ask("XGROUP", "CREATE", "s", "g", 0)
        client.ask("XREADGROUP", "GROUP", "g", "c", "COUNT", 5, "STREAMS", "s", ">")
        client.ask("XGROUP", "POLICY", "s", "g", "CONSUMERTTL", 3_600_000)
        client.ask("PEXPIRE", "s", 3_600_000)
    rows = tmp_path / "rows"
    rows.write_text('{"f": "v"}\n{"f": "w"}\n')
    told = 0
    for number in range(30):
        chance = random.Random(base_seed() * 1000 + number)
        with liar(riverbed.port, chance, chance.choice((0.05, 0.2, 0.5))) as port:
            names = {"URL": f"redis://127.0.0.1:{port}", "NEW": str(tmp_path / f"new{number}"), "ROWS": str(rows)}
            result = CliRunner().invoke(main, [names.get(word, word) for word in command.split()])
        assert isinstance(result.exception, SystemExit | None), (number, result.exc_info)
        assert result.exit_code in (0, 1, 2)
        told += "in no known form" in result.stderr or "has no known form" in result.stderr
    assert told
