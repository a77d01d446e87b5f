"""What an endpoint's demand will be: learnt from what it was, in quantiles, with its own error.

Pure, the ground of the core.
"""
