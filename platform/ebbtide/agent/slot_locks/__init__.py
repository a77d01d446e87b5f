"""The lock of each slot, its content, the highest epoch that held it, and the allocation log of its holders.

Knows no Ray.
"""
