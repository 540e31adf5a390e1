"""Simulated traffic: legal, and with a fault for every rule.

It may import everything of its protocol.
"""
