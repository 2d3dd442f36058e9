"""What lies on the disk is compared with its checksums, and made again where it is damaged.

Read `scrub` first.
"""
