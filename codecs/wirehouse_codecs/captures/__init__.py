"""Files that hold captures: their formats, compression and archives.

It may import core and compiled.
"""
