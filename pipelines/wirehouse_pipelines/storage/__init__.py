"""Storage: the objects of a lake in a local folder or an S3 bucket, with locks and retries.

It imports no other package of pipelines.
"""
