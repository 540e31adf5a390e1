"""What blocks mean together: the chain (`chain`, which opens with the theory) and a whole consumer (`consumer`).

It may import fast, session and what is below them.
"""
