"""A start that does not succeed, or follows a server that did not end well: why, what is mended, what is left for it.

`main` begins here when `network.listener` could not open the store.  Knows no client.
"""
