"""SQL for people and tools: the prompt and the server.

It may import config, servers and terminal.
"""
