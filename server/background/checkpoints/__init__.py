"""When the tables are made durable; before that, rows are put into them in turns, and writes may wait for the disk.

Read `checkpoints` first.
"""
