from __future__ import annotations

from pathlib import Path

import pytest

from store.errors import StoreError
from store.tables import Tables


def test_a_name_that_lmdb_cannot_have_is_an_error_of_the_store() -> None:
    with pytest.raises(StoreError, match="is not UTF-8"):
        Tables(Path("/data\udcff"), 1 << 20, readonly=True)
