"""Commands on streams: XADD, XRANGE, XREAD, XDEL, XTRIM and their kin."""

from __future__ import annotations
