"""`riverbed spark audit`: finds problems of the groups of a snapshot, and changes since an earlier one.

Read `audit` first.
"""

from __future__ import annotations
