"""The one write transaction that all requests share, below streams and databases: `transaction` has the rows,
`commands` what is logged; `participants` and `namespace` say what is known here of the objects above.
"""

from __future__ import annotations
