"""The job's Ray Train controller: its gang, where it is placed, causes of failures and when to give up.

The only room that knows Ray Train's internals. Imports no torch.
"""
