"""One tide on one machine: ``python -m benchmarks.demo``.

``traffic`` says who asks what and when, ``client`` asks it over HTTP, ``tide`` runs the pool through it, ``account``
and ``exactness`` read afterwards what really happened, ``report`` shows it.
"""
