from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from riverbed.tools.cli import main
from riverbed.tools.subcommands.spark import spark


@pytest.mark.parametrize("job", spark.list_commands(click.Context(spark)))
def test_each_job_explains_itself(job: str) -> None:
    done = CliRunner().invoke(main, ["spark", job, "--help"])
    assert done.exit_code == 0, done.output
    assert f"spark {job} [OPTIONS]" in done.output
