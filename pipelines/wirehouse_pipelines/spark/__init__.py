"""Spark: the session, its workers and what is sent to them, Java, jars, and Wirehouse's own Java classes.

It may import all other packages of pipelines.
"""
