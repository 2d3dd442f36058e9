"""The parts of a store that runs, which `engine.py` ties together: checkpoints, and free space.

None of them knows the engine, or when a tick begins.  Read `checkpoint` first.
"""

from __future__ import annotations
