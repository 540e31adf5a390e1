"""Tools of developers: benchmark, chaos, generated pages, pictures.

They are in no wheel and run from the project's folder.
"""
