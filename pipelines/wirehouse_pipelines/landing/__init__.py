"""From captures to landed objects and their manifests.

It may import lake and what is below it.
"""
