"""The node's host memory for parked state: who may have how much, and what becomes of what dead borrowers left."""
