"""Images of process trees by CRIU: looking at a tree, dumping it, checking an image, making processes of it again.

Knows CRIU and /proc. Knows neither sockets of ours, nor who asks, nor what else the workload is.
"""
