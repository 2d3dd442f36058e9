"""The parts of a store that runs, which `engine.py` ties together: the log that it keeps, its batches and what the
manifest states, the state and the way back to it, checkpoints, free space, and why writes are refused.

None of them knows the engine, or when a tick begins.  Read `log_keeper` first, then `live_state`.
"""

from __future__ import annotations
