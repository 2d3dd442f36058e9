"""Commands on whole keys: existence, names, deadlines, scans."""

from __future__ import annotations
