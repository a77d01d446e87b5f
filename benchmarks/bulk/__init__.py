"""``make bench-storage``: bulk bytes against what the disk can do and against everybody else who loads and saves.

Every contender runs in a process of its own, cold (its files' pages dropped) or warm, between two runs of fio; all
contenders of a round follow each other, and rounds are repeated. Ratios are to the mean of the two fio runs around.
"""
