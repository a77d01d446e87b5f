"""Worker processes on a node as Ray has them: who uses which logical GPU, and the end of those that Ray has lost.

Knows Ray.
"""
