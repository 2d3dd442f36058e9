"""`riverbed audit`: what is wrong with the groups of a snapshot, and since an earlier one.

Read `audit` first.
"""

from __future__ import annotations
