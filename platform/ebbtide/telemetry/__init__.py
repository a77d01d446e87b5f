"""What is measured: names, help texts and buckets of all Prometheus metrics, and how they are shown.

One module per subject (``gateway``, ``pool``, ``handover``, ``training``, ``arbiter``); ``catalogue`` has them all. May
know prometheus-client and nothing else: no Ray, no policy. What the numbers are is computed where they arise.
"""
