"""What training says to the arbiter and hears from it: reports of the controller and of a rank, requests to park.

Knows no torch.
"""
