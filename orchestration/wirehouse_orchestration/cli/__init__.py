"""The command `wirehouse`.

It may import every other sub-package.
"""
