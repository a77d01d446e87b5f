"""``make bench-preempt``: how soon a slot is free and the job is back, by every way of stepping aside.

Every contender runs in fresh processes, all of a round one after the other, and the rounds are repeated in another
order. All train the same state, and each must give the loss of an undisturbed run after it is back, bit for bit.
Events are told with times of CLOCK_MONOTONIC, which all processes of a machine share.
"""
