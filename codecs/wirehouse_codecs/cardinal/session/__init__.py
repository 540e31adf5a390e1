"""One block, assembled message by message (`assembly`, which opens with the theory).

It may import wire and what is below it.
"""
