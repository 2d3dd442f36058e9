"""The tools, and Spark's writer, as clients of servers that speak TLS."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from riverbed.tools.spark.errors import OptionError
from riverbed.tools.spark.writing.options import write_options
from riverbed.tools.spark.writing.server import Connection
from tests.support.certificates import Authority, Certificates
from tests.support.documents import blocks_of
from tests.support.program import run
from tests.support.servers import ROOT
from tests.support.tls import Start


def files(certificates: Certificates) -> list[object]:
    own = certificates.client
    return ["--cacert", certificates.authority.cert, "--cert", own.cert, "--key", own.key]


def test_every_tool_that_speaks_to_a_server_speaks_tls(
    start_tls: Start, certificates: Certificates, tmp_path: Path
) -> None:
    server = start_tls()
    target, options = f"localhost:{server.port}", files(certificates)
    line = json.dumps({"id": "1-1", "fields": {"f": "v"}})
    assert run("load", target, "s", "--tls", *options, given=line).exit_code == 0
    assert json.loads(run("dump", target, "s", *options).stdout) == {"id": "1-1", "fields": {"f": "v"}}
    assert json.loads(run("stat", f"rediss://{target}", "--json", *options).stdout)["length"] == 1
    assert json.loads(run("top", target, "--json", "--count", 1, *options).stdout)["address"] == target
    assert run("import", f"rediss://{target}", tmp_path / "copy", *options).exit_code == 0
    assert run("dump", tmp_path / "copy", "s").stdout.strip() == line
    second = start_tls()
    assert run("import", f"rediss://{target}", f"rediss://localhost:{second.port}", *options).exit_code == 0
    with second.client() as client:
        assert client.ask("XLEN", "s") == b":1\r\n"


def test_the_certificates_of_the_guide_are_believed_where_python_is_strict(tmp_path: Path) -> None:
    """`ssl.create_default_context` sets VERIFY_X509_STRICT from Python 3.13 on."""
    [script] = [block.text for block in blocks_of((ROOT / "docs/tls.md").read_text()) if "openssl req" in block.text]
    subprocess.run(["bash", "-ec", script.partition("cd ..")[0]], cwd=tmp_path, check=True, timeout=60)
    made = tmp_path / "tls"
    for name, purpose in (("server", "sslserver"), ("client", "sslclient")):
        words = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", made / "ca.crt"]
        done = subprocess.run([*words, made / f"{name}.crt"], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_server_that_is_not_known_is_not_believed(
    start_tls: Start, certificates: Certificates, tmp_path: Path
) -> None:
    server = start_tls(tls_auth_clients="no")
    other = Authority(tmp_path / "other", "other")
    for words in (["--tls"], ["--cacert", other.cert]):
        result = run("stat", f"localhost:{server.port}", *words)
        assert result.exit_code == 2
        assert "certificate verify failed" in result.stderr
    wrong = run("stat", f"localhost:{server.port}", *files(certificates)[:4], "--key", certificates.server.key)
    assert wrong.exit_code == 2
    assert "cannot be used: key values mismatch" in wrong.stderr


def test_a_tool_without_tls_fails_at_a_port_with_tls(start_tls: Start) -> None:
    result = run("stat", f"localhost:{start_tls().port}")
    assert result.exit_code == 2
    assert "closed the connection" in result.stderr


def test_the_writer_of_spark_speaks_tls(start_tls: Start, certificates: Certificates) -> None:
    server = start_tls()
    own = certificates.client
    options = {
        "server": f"localhost:{server.port}",
        "tls": "true",
        "tlsCaFile": str(certificates.authority.cert),
        "tlsCertFile": str(own.cert),
        "tlsKeyFile": str(own.key),
        "stream": "s",
    }
    connection = Connection(write_options(options))
    assert connection.call("PING") == b"PONG"
    connection.close()
    with pytest.raises(OptionError, match="tls must be true or false"):
        write_options({**options, "tls": "perhaps"})
