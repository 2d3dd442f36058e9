from __future__ import annotations

import crc32c as package
import pytest

from riverbed.store import checksum

# RFC 3720, appendix B.4
KNOWN = {bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43, bytes(range(32)): 0x46DD794E, b"": 0}


@pytest.mark.parametrize("data", KNOWN)
def test_checksums_are_those_of_the_standard(data: bytes) -> None:
    assert checksum.crc32c(data) == package.crc32c(data) == KNOWN[data]
    assert checksum.crc32c(data[5:], checksum.crc32c(data[:5])) == KNOWN[data]


def test_a_package_that_keeps_its_extension_elsewhere_is_used_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    find = checksum.PathFinder.find_spec
    monkeypatch.setattr(checksum.PathFinder, "find_spec", lambda name, *path: None if path else find(name))
    assert checksum._extension() is package
