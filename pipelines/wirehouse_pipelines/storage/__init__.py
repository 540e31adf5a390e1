"""Files of a lake in a folder or an object store, with locks and retries.

It imports no other room of pipelines.
"""
