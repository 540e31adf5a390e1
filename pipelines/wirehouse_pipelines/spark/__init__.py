"""Spark: sessions, workers and what they are sent, Java, jars, our own Java classes.

It is on top of the other rooms.
"""
