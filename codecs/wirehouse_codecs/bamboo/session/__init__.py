"""The state machine of a conversation, message by message.

It may import wire and what is below it.
"""
