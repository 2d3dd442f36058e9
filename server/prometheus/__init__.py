"""The metrics page: which figures it has, how it is made in slices, and how it is served.

Read `figures` first.
"""

from __future__ import annotations
