"""What runs inside the wall: standard library only, and nothing else of ours.

A sandbox ships these files as text to a bare interpreter, so nothing here may import from the
rest of isograd. ``supervisor`` has the wire protocol and the theory of operation.
"""
