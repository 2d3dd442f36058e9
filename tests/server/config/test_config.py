from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hiredis
import pytest

from riverbed.server.config.config import Config
from riverbed.server.config.file import ConfigFileError, replace_file
from riverbed.server.config.kinds import BadValueError, OutputLimit, memory_text, parse_memory
from riverbed.server.config.rewrite import rewrite
from riverbed.server.config.settings import SETTINGS
from riverbed.server.config.values import ConfigError, UnknownSettingError
from riverbed.store.options import Fsync, Options
from tests.support.servers import ROOT, RedisServer

WriteFile = Callable[..., Path]


@pytest.fixture
def write_file(tmp_path: Path) -> WriteFile:
    def write(text: str, name: str = "riverbed.conf") -> Path:
        path = tmp_path / name
        path.write_bytes(os.fsencode(text))
        return path

    return write


# -- defaults and kinds


def test_every_setting_renders_a_default_that_it_accepts() -> None:
    config = Config()
    for setting in SETTINGS.values():
        value = getattr(config, setting.attribute)
        assert setting.parse(setting.file_words(value), value) == value, setting.name


def test_every_setting_says_what_it_is_for() -> None:
    assert [setting.name for setting in SETTINGS.values() if len(setting.summary) < 10] == []


def test_fsync_policies_are_those_of_the_store() -> None:
    config = Config()
    for policy in Fsync:
        config.set([("appendfsync", policy.value)])
        assert Fsync(config.appendfsync) is policy
    assert Fsync(Config().appendfsync) is Options().fsync


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("0", 0), ("17", 17), ("3b", 3), ("1k", 1000), ("1kb", 1024), ("2M", 2_000_000), ("64mb", 64 << 20)),
        *(("1g", 10**9), ("1GB", 1 << 30)),
    ],
)
def test_memory_units_are_those_of_redis(text: str, size: int) -> None:
    assert parse_memory(text) == size
    assert parse_memory(memory_text(size)) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5k", "1 k", "1tb", "kb", "+1"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(BadValueError, match="argument must be a memory value"):
        parse_memory(text)


# -- command line


def test_flags_take_values_up_to_the_next_flag() -> None:
    config = Config.load(["--port", "7000", "--bind", "127.0.0.1", "::1", "--appendfsync", "EVERYSEC"])
    assert config.port == 7000
    assert config.bind == ("127.0.0.1", "::1")
    assert config.appendfsync == "everysec"


def test_a_flag_may_have_its_value_behind_an_equals_sign() -> None:
    config = Config.load(["--port=7000", "--requirepass=--a=b"])
    assert config.port == 7000
    assert config.requirepass == b"--a=b"


def test_a_list_may_come_in_one_word() -> None:
    config = Config.load(["--client-output-buffer-limit", "normal 1mb 2 3", "--save", ""])
    assert config.client_output_buffer_limit["normal"] == OutputLimit(1 << 20, 2, 3)
    assert config.client_output_buffer_limit["pubsub"] == OutputLimit(32 << 20, 8 << 20, 60)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "abc"], "command line: port: 'abc' is no number between 0 and 65535"),
        (["--port"], "command line: port: wrong number of arguments"),
        (["--port", "1", "2"], "command line: port: wrong number of arguments"),
        (["--port", "65536"], "command line: port: '65536' is no number between 0 and 65535"),
        (
            ["--port", "99999999999999999999"],
            "command line: port: '99999999999999999999' is no number between 0 and 65535",
        ),
        (["--nosuch", "1"], "command line: nosuch: there is no such setting"),
        (["--port", "1", "-x"], "command line: port: wrong number of arguments"),
        (["--appendonly", "maybe"], "command line: appendonly: only 'yes' is supported: the store is made"),
        (["--aof-load-truncated", "1"], "command line: aof-load-truncated: argument must be 'yes' or 'no'"),
        (["--loglevel", "x"], "command line: loglevel: argument(s) must be one of the following: debug, verbose, "),
        (["--unixsocketperm", "8"], "command line: unixsocketperm: '8' is no octal number between 0 and 777"),
        (["--unixsocketperm", "1000"], "command line: unixsocketperm: '1000' is no octal number between 0 and 777"),
        (
            ["--stream-node-max-entries", "-1"],
            "command line: stream-node-max-entries: '-1' is no number between 0 and 9223372036854775807",
        ),
        (
            ["--stream-node-max-bytes", "4x"],
            "command line: stream-node-max-bytes: '4x' is no number of bytes between 0",
        ),
        (
            ["--client-query-buffer-limit", "1kb"],
            "command line: client-query-buffer-limit: '1kb' is no number of bytes",
        ),
        (
            ["--appendfilename", "log"],
            "command line: appendfilename: only 'appendonly.aof' is supported: `riverbed replay DIR NEW` makes a",
        ),
        (["--bind", '"'], "command line: bind: unbalanced quotes"),
        (["-p", "1"], "command line: -p: expected --name value, such as --port 6379; --help lists them"),
    ],
)
def test_bad_flag_is_one_clear_line(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.load(arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


# -- files


def test_file_has_comments_quotes_units_and_lists(write_file: WriteFile) -> None:
    path = write_file(
        "# a comment\n\n  PORT 7001 \nrequirepass \"two \\x77ords\\n\"\nlogfile 'it\\'s'\r\n"
        'bind 127.0.0.1 -::1\nsave ""\nclient-query-buffer-limit 2mb\naof-load-truncated no\n'
        "client-output-buffer-limit normal 1 2 3\nclient-output-buffer-limit slave 4kb 5 6\n"
    )
    config = Config.load([str(path)])
    assert config.port == 7001
    assert config.requirepass == b"two words\n"
    assert config.logfile == "it's"
    assert config.client_query_buffer_limit == 2 << 20
    assert config.aof_load_truncated is False
    assert config.client_output_buffer_limit["normal"] == OutputLimit(1, 2, 3)
    assert config.client_output_buffer_limit["replica"] == OutputLimit(4096, 5, 6)


def test_flags_overrule_the_file(write_file: WriteFile) -> None:
    config = Config.load([str(write_file("port 1\ntimeout 5\n")), "--port", "2"])
    assert (config.port, config.timeout) == (2, 5)


def test_later_lines_overrule_earlier_ones(write_file: WriteFile) -> None:
    assert Config.load([str(write_file("port 1\nport 2\n"))]).port == 2


def test_included_files_stand_where_they_are_included(write_file: WriteFile, tmp_path: Path) -> None:
    write_file("port 2\ntimeout 2\n", "one.inc")
    write_file("maxclients 2\n", "two.inc")
    path = write_file(f"port 1\ninclude {tmp_path}/*.inc {tmp_path}/*.none\ntimeout 3\n")
    config = Config.load([str(path)])
    assert (config.port, config.timeout, config.maxclients) == (2, 3, 2)


def test_file_that_includes_itself_is_refused(write_file: WriteFile, tmp_path: Path) -> None:
    path = write_file(f"include {tmp_path}/riverbed.conf\n")
    with pytest.raises(ConfigFileError, match=r"riverbed.conf:1: include: more than 16 files inside each other"):
        Config.load([str(path)])


def test_missing_included_file_is_named_with_the_line(write_file: WriteFile, tmp_path: Path) -> None:
    path = write_file(f"port 1\ninclude {tmp_path}/none.conf\n")
    with pytest.raises(ConfigFileError, match=r"riverbed.conf:2: include: .*/none.conf: No such file or directory"):
        Config.load([str(path)])


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match=r"none.conf: No such file or directory"):
        Config.load([str(tmp_path / "none.conf")])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nport abc\n", ":2: port: 'abc' is no number between 0 and 65535"),
        ("nosuch 1\n", ":1: nosuch: there is no such setting"),
        ('port "1\n', ":1: unbalanced quotes in configuration line"),
        ("enable-protected-configs no\n", ":1: enable-protected-configs: Riverbed does not have it, and would be more"),
        (
            "rename-command FLUSHALL a-secret-name\n",
            ":1: rename-command: Riverbed does not rename commands; take them from users instead, as in: user default",
        ),
        ("tls-ciphersuites x\n", ":1: tls-ciphersuites: Python cannot choose the ciphers of TLS 1.3"),
    ],
)
def test_bad_line_is_named_with_file_and_number(write_file: WriteFile, text: str, message: str) -> None:
    path = write_file(text)
    with pytest.raises((ConfigError, ConfigFileError)) as caught:
        Config.load([str(path)])
    assert str(caught.value).startswith(f"{path}{message}")


def test_all_bad_lines_are_named_at_once(write_file: WriteFile) -> None:
    path = write_file("port abc\nrdbcompression yes\nnosuch 1\n")
    with pytest.raises(ConfigError) as caught:
        Config.load([str(path), "--timeout", "x"])
    assert str(caught.value).splitlines() == [
        f"{path}:1: port: 'abc' is no number between 0 and 65535",
        f"{path}:3: nosuch: there is no such setting",
        "command line: timeout: 'x' is no number between 0 and 2147483647",
    ]


def test_other_values_of_fixed_settings_are_ignored_in_a_file(write_file: WriteFile) -> None:
    config = Config.load([str(write_file("daemonize yes\nsave 900 1\nmaxmemory 1gb\nhz 50\nport 1\n"))])
    assert config.port == 1
    assert [(line.name, line.reason.split(":")[0]) for line in config.ignored] == [
        ("daemonize", "only 'no' is supported"),
        ("save", "only '' is supported"),
        ("maxmemory", "only '0' is supported"),
        ("hz", "'50' is not 10"),
    ]
    assert config.get([b"daemonize", b"save"]) == {"daemonize": "no", "save": ""}


def test_a_file_with_every_setting_of_redis_at_its_default_is_read(
    write_file: WriteFile, start_redis: Callable[..., RedisServer]
) -> None:
    with start_redis().client() as client:
        reader = hiredis.Reader(encoding="utf-8")
        reader.feed(client.ask("CONFIG", "GET", "*"))
    words = reader.gets()
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    own = {"dir", "port", "bind", "unixsocket", "logfile"}
    guards = {"aclfile", "acl-pubsub-default", "enable-protected-configs"}
    lines = [f'{name} "{value}"' for name, value in pairs.items() if name not in own | guards]
    config = Config.load([str(write_file("\n".join(lines)))])
    assert config.timeout == 0


def test_lines_about_what_does_not_exist_here_are_passed_over(write_file: WriteFile) -> None:
    config = Config.load([str(write_file("rdbcompression yes\nport 1\n"))])
    assert [line.name for line in config.ignored] == ["rdbcompression"]
    assert config.get([b"rdb*"]) == {}


# -- get


def test_get_takes_patterns_in_any_case_and_answers_in_the_order_of_the_list() -> None:
    assert Config().get([b"T?MEOUT", b"tcp-*", b"timeout"]) == {
        "tcp-backlog": "511",
        "tcp-keepalive": "300",
        "timeout": "0",
    }
    assert Config().get([b"nosuch"]) == {}


def test_dir_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Config.load([]).dir == tmp_path
    assert Config.load(["--dir", "data"]).dir == tmp_path / "data"


# -- set


def test_set_changes_all_or_nothing() -> None:
    config = Config()
    config.set([("timeout", "5"), ("MAXCLIENTS", "7")])
    assert (config.timeout, config.maxclients) == (5, 7)
    with pytest.raises(ConfigError, match="argument must be between"):
        config.set([("timeout", "6"), ("maxclients", "0")])
    with pytest.raises(UnknownSettingError):
        config.set([("timeout", "6"), ("nosuch", "0")])
    with pytest.raises(ConfigError, match="can't set immutable config"):
        config.set([("timeout", "6"), ("port", "1")])
    assert (config.timeout, config.maxclients) == (5, 7)


@pytest.mark.parametrize("name", ["repl-backlog-ttl", "repl-diskless-sync", "REPL-DISKLESS-LOAD"])
def test_a_setting_of_redis_without_meaning_here_is_named_so(name: str) -> None:
    with pytest.raises(ConfigError, match="it has no meaning here, and is ignored in a file") as caught:
        Config().set([(name, "0")])
    assert not isinstance(caught.value, UnknownSettingError)


def test_settings_of_replication_can_be_set() -> None:
    config = Config()
    config.set([("shutdown-timeout", "3"), ("repl-backlog-size", "1mb"), ("replica-read-only", "yes")])
    assert (config.shutdown_timeout, config.repl_backlog_size) == (3, 1 << 20)
    assert config.get([b"replica-read-only"]) == {"replica-read-only": "yes"}


def test_observers_hear_of_changes_only() -> None:
    config = Config()
    heard: list[int] = []
    config.observe("timeout", lambda: heard.append(config.timeout))
    config.set([("maxclients", "7")])
    config.set([("timeout", "0")])
    config.set([("timeout", "5")])
    assert heard == [5]


@pytest.mark.parametrize("error", [BadValueError("no room for seven"), OSError("no memory")])
def test_a_refused_change_is_heard_of_by_nobody(error: Exception) -> None:
    config = Config()
    heard: list[object] = []

    def refuse() -> None:
        assert config.maxclients == 7
        raise error

    config.observe("timeout", lambda: heard.append(config.timeout))
    config.prepare(["databases", "requirepass"], lambda: lambda: heard.append(config.requirepass))
    config.prepare(["maxclients"], refuse)
    with pytest.raises(ConfigError if isinstance(error, BadValueError) else OSError, match=r"no (room|memory)"):
        config.set([("timeout", "5"), ("requirepass", "secret"), ("maxclients", "7")])
    assert (config.timeout, config.maxclients, config.requirepass) == (0, 10000, Config().requirepass)
    assert heard == []
    config.set([("timeout", "5"), ("requirepass", "secret")])
    assert heard == [config.requirepass, 5]


def test_values_are_the_instances_own() -> None:
    one, other = Config(), Config()
    one.set([("timeout", "5")])
    assert other.timeout == 0


# -- rewrite


def test_rewrite_of_an_unchanged_file_leaves_every_byte(write_file: WriteFile) -> None:
    text = "# top\nport   7001\n\n#end\nrdbchecksum yes\nclient-output-buffer-limit normal 1mb 0 0\n"
    path = write_file(text)
    rewrite(Config.load([str(path)]), [])
    assert path.read_text() == text


def test_rewrite_replaces_what_changed_and_keeps_the_rest(write_file: WriteFile) -> None:
    path = write_file("# top\ntimeout 1\n\n# about clients\nmaxclients 5\ntimeout 2\nrdbchecksum yes\n#end")
    config = Config.load([str(path)])
    config.set([("timeout", "9"), ("proto-max-bulk-len", "2097152"), ("requirepass", "a b\x01")])
    rewrite(config, [])
    assert path.read_text() == (
        "# top\ntimeout 9\n\n# about clients\nmaxclients 5\nrdbchecksum yes\n#end\n\n"
        '# Written by CONFIG REWRITE\nrequirepass "a b\\x01"\nproto-max-bulk-len 2mb\n'
    )
    again = Config.load([str(path)])
    assert again.get([b"*"]) == config.get([b"*"])
    config.set([("latency-monitor-threshold", "3")])
    rewrite(config, [])
    assert path.read_text().count("# Written by CONFIG REWRITE") == 1


def test_rewrite_includes_what_flags_said(write_file: WriteFile) -> None:
    path = write_file("port 1\n")
    rewrite(Config.load([str(path), "--port", "2", "--bind", "127.0.0.1", "::1"]), [])
    assert path.read_text() == "port 2\n\n# Written by CONFIG REWRITE\nbind 127.0.0.1 ::1\n"


@pytest.mark.parametrize("place", ["file", "flag"])
def test_rewrite_writes_no_second_line_for_a_user(write_file: WriteFile, tmp_path: Path, place: str) -> None:
    users = tmp_path / "users.conf"
    users.write_text("user u on nopass\n")
    path = write_file(f"include {users}\n" if place == "file" else "port 1\n")
    text = path.read_text()
    flags = ["--user", "u", "on", "nopass"] if place == "flag" else []
    said = f"{users}:1" if place == "file" else "command line"
    with pytest.raises(ConfigError, match=f"{said}: user: users are written to {path}, or to an aclfile"):
        rewrite(Config.load([str(path), *flags]), [["u", "on", "nopass"]])
    assert path.read_text() == text


def test_rewrite_goes_back_to_the_default(write_file: WriteFile) -> None:
    path = write_file("timeout 5\nclient-output-buffer-limit normal 1 2 3\n")
    config = Config.load([str(path)])
    config.set([("timeout", "0"), ("client-output-buffer-limit", "normal 0 0 0")])
    rewrite(config, [])
    assert Config.load([str(path)]).get([b"*"]) == Config().get([b"*"])


def test_rewrite_wins_over_an_included_file(write_file: WriteFile, tmp_path: Path) -> None:
    write_file("timeout 5\nmaxclients 5\n", "more.inc")
    path = write_file(f"timeout 1\ninclude {tmp_path}/more.inc\n")
    config = Config.load([str(path)])
    config.set([("timeout", "7")])
    rewrite(config, [])
    again = Config.load([str(path)])
    assert (again.timeout, again.maxclients) == (7, 5)
    assert "maxclients" not in path.read_text()


def test_rewrite_leaves_the_file_to_its_owner(
    write_file: WriteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("os.chown", lambda path, user, group, **how: given.append((Path(path).parent, user, group)))
    path = write_file("maxclients 7")
    owner = path.stat()
    replace_file(path, ["maxclients 8"])
    assert given == [(path.parent, owner.st_uid, owner.st_gid)]
    assert path.read_text() == "maxclients 8"


def test_rewrite_keeps_permissions_and_links_and_leaves_no_other_file(write_file: WriteFile, tmp_path: Path) -> None:
    path = write_file("timeout 1\n")
    path.chmod(0o640)
    link = tmp_path / "link.conf"
    link.symlink_to(path)
    config = Config.load([str(link)])
    config.set([("timeout", "2")])
    rewrite(config, [])
    assert link.is_symlink()
    assert path.read_text() == "timeout 2\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link.conf", "riverbed.conf"]


def test_bytes_that_are_no_text_survive(write_file: WriteFile) -> None:
    path = write_file("")
    path.write_bytes(b"requirepass \xff\xfe\n")
    config = Config.load([str(path)])
    assert config.requirepass == b"\xff\xfe"
    config.set([("requirepass", os.fsdecode(b"\xfe a"))])
    rewrite(config, [])
    assert Config.load([str(path)]).requirepass == b"\xfe a"


@pytest.mark.parametrize("is_included", [False, True])
@pytest.mark.parametrize("kind", ["a pipe", "a device", "a directory", "endless", "a loop"])
def test_only_a_file_of_a_few_megabytes_is_read(tmp_path: Path, kind: str, is_included: bool) -> None:
    path = tmp_path / "strange"
    reason = f"{path} is {kind}, and no file"
    wait_s = 1
    match kind:
        case "a pipe":
            os.mkfifo(path)
            if not is_included:
                reason = f"{path} is a pipe to which nothing was written for {wait_s} seconds"
        case "a device":
            path.symlink_to("/dev/zero")
        case "a directory":
            path.mkdir()
        case "a loop":
            path.symlink_to(path)
            reason = f"{path}: Too many levels of symbolic links"
        case _:
            with path.open("wb") as file:
                file.truncate(1 << 40)
            reason = f"{path} has more than 16,777,216 bytes"
    named = path
    if is_included:
        named = tmp_path / "riverbed.conf"
        named.write_text(f"include {path}\n")
        reason = f"{named}:1: include: {reason}"
    # a device that is read to its end ends the process, not the machine
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31));"
    impatient = f"from riverbed.server.config import file; file.PIPE_WAIT_S = {wait_s};"
    program = limited + impatient + "from riverbed.server.config.config import Config; Config.load(sys.argv[1:])"
    words = [sys.executable, "-c", program, str(named)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr.splitlines()[-1] == f"riverbed.server.config.file.ConfigFileError: {reason}"


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_a_pipe_that_is_written_to_is_read(size: int) -> None:
    text = "port 7000\n" + "#" * size + "\ntimeout 77\n"
    words = [sys.executable, "-c", "import sys, time; time.sleep(0.2); sys.stdout.write(sys.argv[1])", text]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        config = Config.load([f"/dev/fd/{writer.stdout.fileno()}"])
    assert (config.port, config.timeout) == (7000, 77)
    with pytest.raises(FileNotFoundError):  # the descriptor is closed, and none is made again
        rewrite(config, [])


def test_a_pipe_without_an_end_is_an_error() -> None:
    with subprocess.Popen(["cat", "/dev/zero"], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        path = f"/dev/fd/{writer.stdout.fileno()}"
        with pytest.raises(ConfigFileError, match=f"{path} has more than 16,777,216 bytes"):
            Config.load([path])
        writer.kill()


def test_a_linked_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("port 7000\n")
    (tmp_path / "link").symlink_to("target")
    assert Config.load([str(tmp_path / "link")]).port == 7000


def test_a_name_that_no_file_can_have_is_told(tmp_path: Path) -> None:
    path = tmp_path / "riverbed.conf"
    path.write_text('include "a\\x00b"\n')
    with pytest.raises(ConfigFileError, match=r"riverbed.conf:1: include: 'a.x00b': .*embedded null"):
        Config.load([str(path)])


# -- replication -------------------------------------------------------------------------------------------------------


def test_a_primary_is_host_and_port_or_no_one() -> None:
    assert Config.load(["--replicaof", "example.org", "6380"]).replicaof == ("example.org", 6380)
    assert Config.load(["--replicaof", "example.org 6380"]).replicaof == ("example.org", 6380)
    assert Config.load(["--replicaof", "no", "one"]).replicaof is None
    for wrong in (["example.org"], ["example.org", "-1"], ["a\nb", "1"], ["example.org", "x"], ["a", "1", "2"]):
        with pytest.raises(ConfigError):
            Config.load(["--replicaof", *wrong])


def test_settings_are_known_by_their_former_names_too(tmp_path: Path) -> None:
    path = tmp_path / "riverbed.conf"
    path.write_text("slaveof example.org 6380\nslave-priority 5\nmin-slaves-to-write 2\n")
    config = Config.load([str(path)])
    assert (config.replicaof, config.replica_priority, config.min_replicas_to_write) == (("example.org", 6380), 5, 2)
    config.set([("min-slaves-to-write", "1")])
    assert config.get([b"min-*-to-write"]) == {"min-replicas-to-write": "1", "min-slaves-to-write": "1"}


def test_a_line_under_a_former_name_is_rewritten_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "riverbed.conf"
    path.write_text("slaveof example.org 6380\nport 7000\n")
    config = Config.load([str(path)])
    config.replicaof = ("other.org", 6381)
    rewrite(config, [])
    assert path.read_text() == "replicaof other.org 6381\nport 7000\n"


def test_a_primary_that_is_followed_no_more_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "riverbed.conf"
    path.write_text("replicaof example.org 6380\nport 7000\n")
    config = Config.load([str(path)])
    config.replicaof = None
    rewrite(config, [])
    assert path.read_text() == "port 7000\n"


def test_a_primary_that_an_included_file_names_is_overruled_in_this_one(tmp_path: Path) -> None:
    (tmp_path / "other.conf").write_text("replicaof example.org 6380\n")
    path = tmp_path / "riverbed.conf"
    path.write_text(f"include {tmp_path / 'other.conf'}\n")
    config = Config.load([str(path)])
    config.replicaof = None
    rewrite(config, [])
    assert Config.load([str(path)]).replicaof is None
