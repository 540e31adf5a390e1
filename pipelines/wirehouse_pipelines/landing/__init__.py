"""Landing: captures are read once and stored, record by record, as Avro objects with a manifest per capture.

It may import lake and what is below it.
"""
